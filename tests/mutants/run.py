#!/usr/bin/env python3
"""Breaks the kernels and the runtime of the CUDA backend on purpose, one place at a time, and demands that a test fails.

  run.py CONFIG                  the committed mutants of mutants.txt: a compilation, a link and some tests for each
  run.py CONFIG --each FILE...   every barrier, wait and bound of these kernel files and headers (cuda/*.cu cuda/*.h),
                                 each in turn; fails for those that no test finds and survivors.txt does not explain

CONFIG is mutants.json of a build with TG_CUDA=EMULATE, whose tests are built. --each is for who changes a kernel: all
changes are in one program, switched on by number (each.py), and each is tried by the tests that come by it, the
quickest first.
"""
import argparse, concurrent.futures, itertools, json, pathlib, re, shutil, sys, time

import each
from mutant import HERE, SCHEDULES, Built, failure, read_list, test


def outcome(config, work, m):
    """How the mutant was found, or None; a text that begins with 'not' if it is no program."""
    built = Built(config, work, {m.file: m.text()})
    try:
        if said := built.compile(m.kernel) or built.link():
            return "not a program: " + said.strip().splitlines()[0]
        for (cases, tests), schedule in itertools.product(m.runs, SCHEDULES):
            if how := failure(test(built.program, cases, tests, schedule)):
                return how
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
    work = options.config.parent / "mutants"
    explained = {m.key(): m.why for m in read_list(HERE / "survivors.txt")}
    start, bad, found = time.time(), [], {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        if options.each:
            outcomes = each.outcomes(config, work, pool, options.each, options.only, explained)
        else:
            mutants = [m for m in read_list(HERE / "mutants.txt") if options.only in str(m)]
            # The tests pass without a change: else every mutant would count as found.
            for cases, tests in sorted({r for m in mutants for r in m.runs}):
                result = test(config["program"], cases, tests)
                if failure(result) or re.search(r"\b0 passed", result.stdout):
                    sys.exit(f"the tests -tc={tests} with TG_CASES={cases} do not pass unchanged:\n{result and result.stdout[-2000:]}")
            jobs = {pool.submit(outcome, config, work / str(i), m): m for i, m in enumerate(mutants)}
            outcomes = ((jobs[job], job.result()) for job in concurrent.futures.as_completed(jobs))
        for m, how in outcomes:
            why = explained.pop(m.key(), None)
            if options.each and how and how.startswith("not a program"):
                continue
            if how and not how.startswith("not "):
                found[how.split(" (")[0]] = found.get(how.split(" (")[0], 0) + 1
                if why:
                    bad.append(f"{m} (survivors.txt explains it, but it is found: {how})")
            elif why:
                how = "survives, as explained: " + why
            else:
                bad.append(f"{m} ({how or 'survives'})")
            print(f"{how or 'SURVIVES':20} {m}", flush=True)
    if options.each and not options.only:
        bad += [f"{k} (survivors.txt explains it, but no such change is made)" for k in explained if k[0] in options.each]
    if not found and not bad:
        sys.exit("no mutant is chosen")
    print(f"{sum(found.values())} found in {time.time() - start:.0f} s:", found)
    if bad:
        sys.exit("\n  ".join([f"{len(bad)} to be mended:"] + bad))


if __name__ == "__main__":
    main()
