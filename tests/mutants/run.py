#!/usr/bin/env python3
"""Breaks the kernels and the runtime of the CUDA backend on purpose, one place at a time, and demands that a test fails.

  run.py CONFIG                  the committed mutants of mutants.txt
  run.py CONFIG --each FILE...   every barrier, wait and bound of these files, each in turn; prints the survivors that
                                 survivors.txt does not explain

CONFIG is mutants.json of a build with TG_CUDA=EMULATE, whose tests are built. A mutant costs the compilation of one
file, a link and the tests that its filter chooses.
"""
import argparse, concurrent.futures, itertools, json, os, pathlib, re, shutil, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RUN_LIMIT = 100  # seconds: what hangs is found
SCHEDULES = "0", "1"  # all forward and at once; all backward and as late as may be


class Mutant:
    def __init__(self, file, kernel, why, runs, was, now, line=None):
        self.file, self.kernel, self.why, self.runs = file, kernel, why, runs  # runs: of (TG_CASES, test cases)
        self.was, self.now, self.line = was, now, line

    def __str__(self):
        return f"{self.file}: {self.why}: {self.was!r} -> {self.now!r}"

    def text(self):
        lines = (ROOT / self.file).read_text().splitlines()
        nth = re.match(r"@(\d+) ", self.was)
        was = self.was[nth.end() :] if nth else self.was
        at = [i for i, s in enumerate(lines) if s.strip() == was]
        if self.line is not None:
            at = [self.line]
        elif nth:
            at = at[int(nth[1]) - 1 : int(nth[1])]
        if len(at) != 1:
            sys.exit(f"{self.file} has {len(at)} lines {self.was!r}, not one: mend {self}")
        lines[at[0]] = self.now
        return "\n".join(lines) + "\n"


def read_list(path):
    """Entries: '# file [in kernel file] | cases | tests | what is broken', then '- line' and '+ replacement'."""
    mutants, head, was = [], None, None
    for number, s in enumerate(path.read_text().splitlines(), 1):
        if s.startswith("## ") or not s.strip():
            continue
        if s.startswith("# "):
            where, cases, tests, why = [p.strip() for p in s[2:].split("|", 3)]
            file, _, kernel = where.partition(" in ")
            head = (file, kernel or file, why, [(cases, tests)])
        elif s.startswith("- ") and head:
            was = s[2:].strip()
        elif s.startswith("+") and was is not None:
            mutants.append(Mutant(*head, was, s[1:].strip()))
            was = None
        else:
            sys.exit(f"{path}:{number}: cannot read {s!r}")
    return mutants


# What --each changes in a line: (name, pattern, replacement).
CHANGES = [
    ("a barrier", r"__sync(?:threads|warp)\(\w*\);", ";"),
    ("a wait", r"\b(?:cp_async_wait<\w+>|mbarrier_wait|wgmma_wait)\([^;]*\);", ";"),
    ("a group", r"\bcp_async_commit\(\);", ";"),
    ("a fence", r"\b(?:__threadfence|async_fence|wgmma_fence)\(\);", ";"),
    ("a bound", r" < ", " <= "),
    ("a bound", r" >= ", " > "),
    ("a bound", r" <= ", " < "),
    ("a check", r"\bif \((?!constexpr)[^;{}]*?[<>=]=?[^;{}]*?\) return;", ";"),
]


def each(file, known):
    code = (ROOT / file).read_text().splitlines()
    kernel, runs = known[file]
    for i, s in enumerate(code):
        plain = s.split("//")[0]
        if plain.lstrip().startswith("#") or "template" in plain or "static_assert" in plain:
            continue
        for why, pattern, instead in CHANGES:
            for m in re.finditer(pattern, plain):
                now = plain[: m.start()] + instead + plain[m.end() :]
                yield Mutant(file, kernel, why, runs, s.strip(), now, i)


def run(command, limit, **more):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit, **more)
    except subprocess.TimeoutExpired:
        return None


def test(program, cases, tests, schedule=SCHEDULES[0]):
    environment = dict(os.environ, TG_CASES=cases, TG_EMULATE_SCHEDULE=schedule)
    return run([program, f"-tc={tests}", "-aa"], RUN_LIMIT, env=environment)


def outcome(config, work, m):
    """How the mutant was found, or None; a text that begins with 'not' if it is no program."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "include" / pathlib.Path("tapegrad", m.file)).parent.mkdir(parents=True)
    stem = pathlib.Path(m.kernel).name
    if m.kernel == m.file:
        source = work / stem
        source.write_text(m.text())
    else:
        source = ROOT / m.kernel
        (work / "include" / "tapegrad" / m.file).write_text(m.text())
    rule = config["cpp" if stem.endswith(".cpp") else "cu"]
    definitions = [f"-D{d}" for d in rule["definitions"] if d]
    includes = [f"-I{work / 'include'}"] + [f"-I{d}" for d in rule["includes"] if d and d != "/usr/include"]
    options = [o for o in rule["options"] if o]
    changed = str(work / f"{stem}.o")
    compiled = run(config["compiler"] + config["flags"] + options + definitions + includes + ["-w", "-o", changed, "-c", str(source)], 600)
    if compiled is None or compiled.returncode:
        return "not compiled: " + (compiled.stdout.strip().splitlines() or [""])[0] if compiled else "not compiled in time"
    others = [o for o in config["core"] if not o.endswith(f"/{m.kernel}.o")]
    if len(others) + 1 != len(config["core"]):
        sys.exit(f"{len(config['core']) - len(others)} objects of the build end in {m.kernel}.o, not one")
    program = str(work / "tests")
    linked = run(config["compiler"][-1:] + config["objects"] + others + [changed] + config["libraries"] + ["-o", program], 600)
    if linked is None or linked.returncode:
        return "not linked: " + (linked.stdout.strip().splitlines() or [""])[0] if linked else "not linked in time"
    try:
        for (cases, tests), schedule in itertools.product(m.runs, SCHEDULES):
            result = test(program, cases, tests, schedule)
            if result is None:
                return "hangs"
            if report := re.search(r"\[simt\] ([a-z ]+):", result.stdout):
                return report[1]
            if result.returncode:
                return "wrong result"
        return None
    finally:
        shutil.rmtree(work)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("config", type=pathlib.Path)
    arguments.add_argument("--each", nargs="+", metavar="FILE")
    arguments.add_argument("--only", default="", help="only mutants whose text has this")
    arguments.add_argument("--jobs", type=int, default=2)
    options = arguments.parse_args()
    config = json.loads(options.config.read_text())
    for key in ("flags", "compiler"):
        config[key] = [w for w in config[key] if w]
    for key in ("core", "objects"):  # not their precompiled headers
        config[key] = [o for o in config[key] if o.endswith(".o")]
    listed = read_list(HERE / "mutants.txt")
    if options.each:
        known = {}  # all tests that find any listed mutant of a file
        for m in listed:
            runs = known.setdefault(m.file, (m.kernel, []))[1]
            runs += [r for r in m.runs if r not in runs]
        missing = [f for f in options.each if f not in known]
        if missing:
            sys.exit(f"mutants.txt has no entry for {', '.join(missing)}, from which to take its tests")
        mutants = [m for f in options.each for m in each(f, known)]
    else:
        mutants = listed
    mutants = [m for m in mutants if options.only in str(m)]
    if not mutants:
        sys.exit("no mutant is chosen")
    # The tests pass without a change: else every mutant would count as found.
    for cases, tests in sorted({r for m in mutants for r in m.runs}):
        result = test(config["program"], cases, tests)
        if result is None or result.returncode or re.search(r"\b0 passed", result.stdout):
            sys.exit(f"the tests -tc={tests} with TG_CASES={cases} do not pass unchanged:\n{result and result.stdout[-2000:]}")
    explained = {}
    for m in read_list(HERE / "survivors.txt"):
        explained[(m.file, m.was, m.now)] = m.why
    work = options.config.parent / "mutants"
    start, bad, found = time.time(), [], {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs = {pool.submit(outcome, config, work / str(i), m): m for i, m in enumerate(mutants)}
        for job in concurrent.futures.as_completed(jobs):
            m, how = jobs[job], job.result()
            if options.each and how and how.startswith("not "):
                continue
            if how and not how.startswith("not "):
                found[how] = found.get(how, 0) + 1
            elif (m.file, m.was, m.now.strip()) in explained:
                how = "survives, as explained: " + explained[(m.file, m.was, m.now.strip())]
            else:
                bad.append(f"{m} ({how or 'survives'})")
            print(f"{how or 'SURVIVES':20} {m}", flush=True)
    print(f"{sum(found.values())} found in {time.time() - start:.0f} s:", found)
    if bad:
        sys.exit("\n  ".join([f"{len(bad)} mutants were not found:"] + bad))


main()
