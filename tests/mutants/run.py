#!/usr/bin/env python3
"""Breaks the kernels and the runtime of the CUDA backend on purpose, one place at a time, and demands that a test fails.

  run.py CONFIG                  the changes of mutants.txt, each by the tests that are named there: all if TG_TEST_EFFORT is
                                 10 or 100, else one in twenty, which TG_TURN chooses
  run.py CONFIG --each FILE...   every barrier, wait and bound of these kernel files and headers (cuda/*/*.cu cuda/*/*.h),
                                 each in turn; fails for those that no test finds and survivors.txt does not explain

CONFIG is mutants.json of a build with TG_CUDA=EMULATE, whose tests are built. All changes are in one program, switched
on by number (switch.py), and each is tried by its tests or, with --each, which is for who changes a kernel, by all tests
that come by it, the quickest first.
"""
import argparse, collections, concurrent.futures, json, os, pathlib, shutil, sys, tempfile, time

import each
from mutant import HERE, SCHEDULES, Built, failure, read_list, run, test
from switch import compile_all

# Of --each: seconds of tests, as they take unchanged, after which a change has survived; and one that survivors.txt
# explains.
LIMIT, EXPLAINED = 60, 1
# Of mutants.txt: this part of it at each commit.
TURNS = 20


def reached(program, unit):
    """Seconds that a unit of tests takes, and the changes that it comes by. It passes while none is switched on: else
    every change would count as found."""
    with tempfile.NamedTemporaryFile("r") as f:
        result = test(program, *unit, TG_MUTANT_REACHED=f.name)
        if failure(result):
            sys.exit(f"TG_CASES={unit[0]} -tc={unit[1]} fails with no change switched on:\n{result and result.stdout[-2000:]}")
        seconds, *numbers = f.read().split()
        return float(seconds), {int(k) for k in numbers}


def tried(program, k, m, units, limit):
    """How one of the units (seconds, what to run) finds change k, or None."""
    for seconds, unit in units:
        for schedule in SCHEDULES[:1] if m.why in ("a bound", "a check") else SCHEDULES:
            if how := failure(test(program, *unit, schedule, 30 + 20 * seconds, TG_MUTANT=str(k))):
                how += f" (schedule {schedule})" * (schedule != SCHEDULES[0])
                return how if m.runs else f"{how} ({unit[1] if unit[0] == 'all' else ': '.join(unit)})"
        limit -= seconds
        if limit < 0:
            break
    return None if units else "not run by any test"


def tried_alone(built, m, units, limit):
    built.write(m.file, m.text())
    said = next(filter(None, map(built.compile, m.kernels)), "") or built.link()
    how = "not a program: " + said.strip().splitlines()[0] if said else tried(built.program, -1, m, units, limit)
    shutil.rmtree(built.work)
    return how


def outcomes(config, work, pool, chosen, explained):
    """(mutant, how it was found or None) of all chosen: {k: mutant}."""
    built, start = Built(config, work / "together"), time.time()
    together, alone = compile_all(built, pool, chosen)
    switch = str(work / "together" / "switch.o")
    run(config["compiler"] + ["-O2", "-c", str(HERE / "switch.cpp"), "-o", switch], 100)
    if said := built.link([switch]):
        sys.exit(f"not linked with switches inside:\n{said[:2000]}")
    print(f"{len(together)} changes in one program, {len(alone)} alone; compiled in {time.time() - start:.0f} s", flush=True)
    every = sorted({u for m in chosen.values() for u in m.runs or []}) or each.units(built.program)
    times = dict(zip(every, pool.map(lambda u: reached(built.program, u), every)))
    print(f"{len(every)} units of tests pass unchanged in {sum(t for t, _ in times.values()):.0f} s", flush=True)
    neighbours = collections.defaultdict(set)  # what is compiled alone is near other changes of its file
    for k, m in together.items():
        neighbours[m.file].add(k)

    def units(k, m):
        """The quickest first, and tests that were written for a kernel before those of all ops."""
        ks = {k} if k in together else neighbours[m.file]
        near = [u for u in m.runs or every if times[u][1] & ks or (m.runs and k in alone)]
        return [(times[u][0], u) for u in sorted(near, key=lambda u: times[u][0] * (1 if u[0] == "all" else 3))]

    limit = lambda m: EXPLAINED if m.key() in explained else LIMIT
    jobs = {pool.submit(tried_alone, Built(config, work / str(k)), m, units(k, m), limit(m)): m for k, m in alone.items()}
    for k, m in sorted(together.items(), key=lambda c: -max([t for t, _ in units(*c)], default=0) * bool(c[1].runs)):
        jobs[pool.submit(tried, built.program, k, m, units(k, m), limit(m))] = m
    for job in concurrent.futures.as_completed(jobs):
        yield jobs[job], job.result()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("config", type=pathlib.Path)
    arguments.add_argument("--each", nargs="+", metavar="FILE")
    arguments.add_argument("--only", default="", help="only changes whose text has this")
    arguments.add_argument("--all", action="store_true", help="all of mutants.txt, whatever TG_TEST_EFFORT is")
    arguments.add_argument("--jobs", type=int, default=2)
    options = arguments.parse_args()
    config = json.loads(options.config.read_text())
    for key in ("flags", "compiler"):
        config[key] = [w for w in config[key] if w]
    for key in ("core", "objects"):  # not their precompiled headers
        config[key] = [o for o in config[key] if o.endswith(".o")]
    for language in ("cu", "cpp"):  # the few tests of mutants.txt take less time than optimising what they run
        config[language]["options"] += ["-g0"] if options.each else ["-g0", "-O0"]
    explained = {m.key(): m.why for m in read_list(HERE / "survivors.txt")} if options.each else {}
    every = [m for f in options.each for m in each.changes(f)] if options.each else read_list(HERE / "mutants.txt")
    chosen = {k: m for k, m in enumerate(every) if options.only in str(m)}
    if not options.each and not options.only and not options.all and os.environ.get("TG_TEST_EFFORT", "1") == "1":
        turn = int(os.environ.get("TG_TURN", "0")) % TURNS
        chosen = {k: m for k, m in chosen.items() if k % TURNS == turn}
        print(f"of {len(every)} changes every {TURNS}th, from number {turn} on: --all makes all")
    if not chosen:
        sys.exit("no change is chosen")
    start, bad, found = time.time(), [], collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for m, how in outcomes(config, options.config.parent / "mutants", pool, chosen, explained):
            why = explained.pop(m.key(), None)
            if options.each and how and how.startswith("not a program"):
                continue
            if how and not how.startswith("not "):
                found[how.split(" (")[0]] += 1
                if why:
                    bad.append(f"{m} (survivors.txt explains it, but it is found: {how})")
            elif why:
                how = "survives, as explained: " + why
            else:
                bad.append(f"{m} ({how or 'survives'})")
            print(f"{how or 'SURVIVES':20} {m}", flush=True)
    if options.each and not options.only:
        bad += [f"{k} (survivors.txt explains it, but no such change is made)" for k in explained if k[0] in options.each]
    print(f"{time.time() - start:.0f} s:", dict(found))
    print(f"covered: {sum(found.values())} mutants")
    if bad:
        sys.exit("\n  ".join([f"{len(bad)} to be mended:"] + bad))


if __name__ == "__main__":
    main()
