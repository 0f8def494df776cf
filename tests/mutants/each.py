"""Every barrier, wait and bound of kernel files, each in turn: `run.py --each`. All changes are compiled into one program
(mutant schemata: Untch, Offutt, Harrold, 1993), where switch.h chooses one at run time; a line that needs its bound while
it is compiled has a program of its own. Each change is tried by the tests that come by it."""
import collections, concurrent.futures, re, shutil, sys, tempfile, time

from mutant import HERE, ROOT, SCHEDULES, Built, Mutant, failure, run, test

# (name, pattern, what takes its place, the same with a switch)
CHANGES = [
    ("a barrier", r"__sync(?:threads|warp)\(\w*\);", ";", "if (tg_mutant({k})); else {was}"),
    ("a wait", r"\b(?:cp_async_wait<\w+>|mbarrier_wait|wgmma_wait)\([^;]*\);", ";", "if (tg_mutant({k})); else {was}"),
    ("a group", r"\bcp_async_commit\(\);", ";", "if (tg_mutant({k})); else {was}"),
    ("a fence", r"\b(?:__threadfence|async_fence|wgmma_fence)\(\);", ";", "if (tg_mutant({k})); else {was}"),
    ("a check", r"\bif \((?!constexpr)[^;{}]*?[<>=]=?[^;{}]*?\) return;", ";", "if (tg_mutant({k})); else "),
    ("a bound", r" < ", " <= ", " < tg_lt({k}) > "),
    ("a bound", r" >= ", " > ", " < tg_ge({k}) > "),
    ("a bound", r" <= ", " < ", " < tg_le({k}) > "),
]
# These take minutes and test what stands on the kernels.
NOT_RUN = "gpt", "memory", "runtime", "library"
NOT_CHANGED = "cuda/ptx.h", "cuda/hopper.h"  # instructions and their twins; what no kernel file includes is not either
# Seconds of tests, as they take unchanged, after which a change has survived; and one that survivors.txt explains.
LIMIT, EXPLAINED = 60, 1


def changes(file):
    """(Mutant, line, first column, last column, text with a switch {k}) of all that can be changed."""
    code = (ROOT / file).read_text().splitlines()
    lines = [s.strip() for s in code]
    nvcc = []  # of each #if around: whether it is nvcc's side
    for i, s in enumerate(code):
        plain = s.split("//")[0]
        if plain.startswith("#if"):
            nvcc.append(bool(re.match(r"#ifdef __CUDA(CC|_ARCH)__", plain)))
        elif plain.startswith("#else"):
            nvcc[-1] = False
        elif plain.startswith("#endif"):
            nvcc.pop()
        if any(nvcc) or plain.lstrip().startswith("#") or "template" in plain or "static_assert" in plain:
            continue
        nth = f"@{lines[: i + 1].count(lines[i])} " if lines.count(lines[i]) > 1 else ""
        for why, pattern, instead, switch in CHANGES:
            for m in re.finditer(pattern, plain):
                now = plain[: m.start()] + instead + plain[m.end() :]
                end = m.start() if why == "a check" else m.end()  # there may be bounds in it
                yield Mutant(file, file, why, [], nth + lines[i], now.strip()), i, m.start(), end, switch.replace("{was}", m[0])


def switched(file, all_changes):
    code = (ROOT / file).read_text().splitlines()
    for k, (m, line, first, last, switch) in sorted(all_changes.items(), key=lambda c: c[1][1:4], reverse=True):
        if m.file == file:
            code[line] = code[line][:first] + switch.replace("{k}", str(k)) + code[line][last:]
    return "\n".join(code) + "\n"


def includers(file):
    """The kernel files that a file is in."""
    texts = {f"cuda/{p.name}": p.read_text() for p in (ROOT / "cuda").iterdir() if p.suffix in (".cu", ".h")}
    found, left = set(), [file]
    while left:
        f = left.pop()
        found.add(f)
        left += [g for g, t in texts.items() if f"#include <tapegrad/{f}>" in t and g not in found]
    return sorted(f for f in found if f.endswith(".cu"))


def compile_all(built, pool, all_changes):
    """Compiles with all changes inside; those that the compiler refuses are taken out and returned."""
    alone = {k: c for k, c in all_changes.items() if re.match(r"(@\d+ )?(static |inline )*constexpr ", c[0].was)}
    all_changes = {k: c for k, c in all_changes.items() if k not in alone}
    files = sorted({c[0].file for c in all_changes.values()})
    left = sorted({k for f in files for k in includers(f)})
    while left:
        for f in files:
            built.write(f, switched(f, all_changes))
        said = dict(zip(left, pool.map(lambda k: built.compile(k, ["-include", str(HERE / "switch.h")]), left)))
        left = [k for k in left if said[k]]
        refused = {}
        for pattern in r"tapegrad/cuda/([\w.]+):(\d+):\d+: error:", r"tapegrad/cuda/([\w.]+):(\d+)":  # or where it comes from
            places = {(f"cuda/{f}", int(n)) for s in said.values() for f, n in re.findall(pattern, s)}
            refused = refused or {k: c for k, c in all_changes.items() if (c[0].file, c[1] + 1) in places}
        if left and not refused:
            sys.exit(f"{left[0]} does not compile with switches inside:\n{said[left[0]][:2000]}")
        alone |= refused
        all_changes = {k: c for k, c in all_changes.items() if k not in refused}
    return all_changes, alone


def units(program):
    """(TG_CASES, test case): test cases, those of the op cases for the ops of one kernel file at a time."""
    files = ",".join(f"*test_cuda_{f}.cpp" for f in NOT_RUN)
    listed = lambda *more: [s.replace(",", "?") for s in run([program, "-ltc", *more], 100).stdout.splitlines() if s[:1] not in "[="]
    words = []
    for path in sorted((ROOT / "cuda").glob("*.cu")):
        names = re.findall(r"TG_KERNEL\((\w+)", path.read_text()) or [path.stem] * (path.stem == "pointwise")
        words.append(",".join(sorted({re.sub(r"(?<!^)(?=[A-Z])", "_", n).lower() for n in names})))
    words = [w.replace("pointwise", "gelu,mul").replace(",", ".,") + "." for w in words if w]  # the ends of names of ops
    return [(w, t) for w in words for t in listed("-sf=*test_cuda_ops.cpp")] + [("all", t) for t in listed("-sfe=*test_cuda_ops.cpp," + files)]


def reached(program, unit):
    """Seconds that a unit takes, and the changes that it comes by."""
    with tempfile.NamedTemporaryFile("r") as f:
        result = test(program, *unit, limit=1000, TG_MUTANT_REACHED=f.name)
        if failure(result):
            sys.exit(f"TG_CASES={unit[0]} -tc={unit[1]} fails with no change switched on:\n{result and result.stdout[-2000:]}")
        seconds, *numbers = f.read().split()
        return float(seconds), {int(k) for k in numbers}


def tried(program, units_of, k, m, limit):
    schedules = SCHEDULES if m.why not in ("a bound", "a check") else SCHEDULES[:1]
    for seconds, unit in units_of:
        for schedule in schedules:
            if how := failure(test(program, *unit, schedule, 30 + 20 * seconds, TG_MUTANT=str(k))):
                return f"{how} ({unit[1] if unit[0] == 'all' else ': '.join(unit)})"
        limit -= seconds
        if limit < 0:
            break
    return None if units_of else "not run by any test"


def tried_alone(config, work, m, some, limit):
    built = Built(config, work, {m.file: m.text()})
    for kernel in includers(m.file):
        if said := built.compile(kernel):
            return "not a program: " + said.strip().splitlines()[0]
    if said := built.link():
        return "not a program: " + said.strip().splitlines()[0]
    how = tried(built.program, some, -1, m, limit)
    shutil.rmtree(work)
    return how


def outcomes(config, work, pool, files, only, explained):
    """(mutant, how it was found or None) of all changes of the files whose text has `only`."""
    files = [f for f in files if f not in NOT_CHANGED and includers(f)]
    chosen = {k: c for k, c in enumerate(c for f in files for c in changes(f)) if only in str(c[0])}
    if not chosen:
        return
    built = Built(config, work / "each", {})
    start = time.time()
    together, alone = compile_all(built, pool, chosen)
    switch = work / "each" / "switch.o"
    run(config["compiler"] + ["-O2", "-c", str(HERE / "switch.cpp"), "-o", str(switch)], 100)
    if said := built.link([str(switch)]):
        sys.exit(f"not linked with switches inside:\n{said[:2000]}")
    print(f"{len(together)} changes in one program, {len(alone)} alone; compiled in {time.time() - start:.0f} s", flush=True)
    every = units(built.program)
    times = dict(zip(every, pool.map(lambda u: reached(built.program, u), every)))
    print(f"{len(every)} units of tests pass unchanged in {sum(t for t, _ in times.values()):.0f} s", flush=True)
    # The quickest first, and tests that were written for a kernel before those of all ops.
    of = lambda ks: [(t, u) for w, t, u in sorted((t if u[0] == "all" else 3 * t, t, u) for u, (t, at) in times.items() if at & ks)]
    neighbours = collections.defaultdict(set)  # what is compiled alone is near other changes of its file
    for k, (m, *_) in together.items():
        neighbours[m.file].add(k)
    limit = lambda m: EXPLAINED if m.key() in explained else LIMIT
    jobs = {pool.submit(tried, built.program, of({k}), k, m, limit(m)): m for k, (m, *_) in together.items()}
    for k, (m, *_) in alone.items():
        jobs[pool.submit(tried_alone, config, work / str(k), m, of(neighbours[m.file]), limit(m))] = m
    for job in concurrent.futures.as_completed(jobs):
        yield jobs[job], job.result()
