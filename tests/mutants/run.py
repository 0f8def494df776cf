#!/usr/bin/env python3
"""Breaks the kernels and the runtime of the CUDA backend, one place at a time, and demands that a test fails.

run.py CONFIG makes the changes of mutants.txt, each for the tests that are named there: all with --all or if
TG_TEST_EFFORT is 10 or 100, else one in twenty, which TG_TURN chooses. CONFIG is
mutants.json of a build with TG_CUDA=EMULATE, whose tests are built. All changes are in one program, switched on by
number (switch.py).
"""
import argparse, collections, concurrent.futures, json, os, pathlib, shutil, sys, tempfile, time

from mutant import HERE, SCHEDULES, Built, failure, read_list, run, test
from switch import compile_all

# Each commit runs one of this number of parts of mutants.txt.
TURNS = 20


def reached(program, unit):
    """Seconds that a unit of tests takes, and the changes that it comes by. It passes while none is switched on: else
    every change would count as found."""
    with tempfile.NamedTemporaryFile("r") as f:
        result = test(program, *unit, TG_MUTANT_REACHED=f.name)
        if failure(result):
            sys.exit(f"TG_CASES={unit[0]} -tc={unit[1]} fails without a change:\n{result and result.stdout[-2000:]}")
        seconds, *numbers = f.read().split()
        return float(seconds), {int(k) for k in numbers}


def tried(program, k, m, seconds):
    """How the tests of change k, which take so many seconds, find it, or None."""
    for schedule in SCHEDULES:
        if how := failure(test(program, *m.tests, schedule, 30 + 20 * seconds, TG_MUTANT=str(k))):
            return how + f" (schedule {schedule})" * (schedule != SCHEDULES[0])
    return None


def tried_alone(built, m, seconds):
    built.write(m.file, m.text())
    said = built.compile(m.kernel) or built.link()
    how = "not a program: " + said.strip().splitlines()[0] if said else tried(built.program, -1, m, seconds)
    shutil.rmtree(built.work)
    return how


def outcomes(config, work, pool, chosen):
    """(mutant, how it was found or None) of all chosen: {k: mutant}."""
    built, start = Built(config, work / "together"), time.time()
    together, alone = compile_all(built, pool, chosen)
    switch = str(work / "together" / "switch.o")
    run(config["compiler"] + ["-O2", "-c", str(HERE / "switch.cpp"), "-o", switch], 100)
    if said := built.link([switch]):
        sys.exit(f"not linked with switches inside:\n{said[:2000]}")
    took = time.time() - start
    print(f"{len(together)} changes in one program, {len(alone)} alone; compiled in {took:.0f} s", flush=True)
    every = sorted({m.tests for m in chosen.values()})
    times = dict(zip(every, pool.map(lambda u: reached(built.program, u), every)))
    print(f"{len(every)} units of tests pass unchanged in {sum(t for t, _ in times.values()):.0f} s", flush=True)
    jobs = {pool.submit(tried_alone, Built(config, work / str(k)), m, times[m.tests][0]): m for k, m in alone.items()}
    for k, m in sorted(together.items(), key=lambda c: -times[c[1].tests][0]):
        seconds, ks = times[m.tests]
        if k in ks:
            jobs[pool.submit(tried, built.program, k, m, seconds)] = m
        else:
            yield m, "not run by its tests"
    for job in concurrent.futures.as_completed(jobs):
        yield jobs[job], job.result()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("config", type=pathlib.Path)
    arguments.add_argument("--only", default="", help="only changes whose text has this")
    arguments.add_argument("--all", action="store_true", help="all of mutants.txt, whatever TG_TEST_EFFORT is")
    arguments.add_argument("--jobs", type=int, default=2)
    options = arguments.parse_args()
    config = json.loads(options.config.read_text())
    for key in ("flags", "compiler"):
        config[key] = [w for w in config[key] if w]
    for key in ("core", "objects"):  # not their precompiled headers
        config[key] = [o for o in config[key] if o.endswith(".o")]
    for language in ("cu", "cpp"):  # optimising takes longer than the tests
        config[language]["options"] += ["-g0", "-O0"]
    every = read_list(HERE / "mutants.txt")
    chosen = {k: m for k, m in enumerate(every) if options.only in str(m)}
    if not options.only and not options.all and os.environ.get("TG_TEST_EFFORT", "1") == "1":
        turn = int(os.environ.get("TG_TURN", "0")) % TURNS
        chosen = {k: m for k, m in chosen.items() if k % TURNS == turn}
        print(f"of {len(every)} changes every {TURNS}th, from number {turn} on: --all makes all")
    if not chosen:
        sys.exit("no change is chosen")
    start, bad, found = time.time(), [], collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for m, how in outcomes(config, options.config.parent / "mutants", pool, chosen):
            if how and not how.startswith("not "):
                found[how.split(" (")[0]] += 1
            else:
                bad.append(f"{m} ({how or 'survives'})")
            print(f"{how or 'SURVIVES':20} {m}", flush=True)
    print(f"{time.time() - start:.0f} s:", dict(found))
    print(f"covered: {sum(found.values())} mutants")
    if bad:
        sys.exit("\n  ".join([f"{len(bad)} to be mended:"] + bad))


if __name__ == "__main__":
    main()
