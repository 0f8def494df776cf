#!/usr/bin/env python3
"""CPU-seconds of .ci/run: by stage, with build and tests separate, and by test.

  bench/ci_time.py [--out FILE] [ARGUMENTS OF .ci/run...]

Runs .ci/run with this file in place of `cmake --build` and `ctest`: --step COMMAND... runs and times a command. ctest's
tests run one by one, in parallel up to the number of cores, because CPU time is known per process. Prints two tables in
Markdown. CPU-seconds are the user and system time of a process and of all that it waited for.
"""
import collections, json, os, re, subprocess, sys, threading

CORES = os.cpu_count()


def run(command, **more):
    """Exit status and CPU-seconds."""
    p = subprocess.Popen(command, **more)
    _, status, usage = os.wait4(p.pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def note(kind, name, seconds):
    with open(os.environ["TG_CI_TIMES"], "a", encoding="utf-8") as f:
        f.write(json.dumps([os.environ["TG_CI_STAGE"], kind, name, seconds]) + "\n")


def run_tests(arguments):
    shown = subprocess.run(["ctest", *arguments, "--show-only=json-v1"], capture_output=True, text=True)
    if shown.returncode:
        sys.exit(shown.stderr)
    tests = [(t["name"], {p["name"]: p["value"] for p in t["properties"]}) for t in json.loads(shown.stdout)["tests"]]
    # setup fixtures first, as ctest runs them
    tests.sort(key=lambda t: (not t[1].get("FIXTURES_SETUP"), -float(t[1].get("COST", 0))))
    chosen = [a for i, a in enumerate(arguments)
              if a not in ("-R", "-E", "--stop-on-failure") and arguments[i - 1] not in ("-R", "-E")]
    condition, free, failed, threads = threading.Condition(), CORES, [], []

    def one(name, cores):
        nonlocal free
        status, seconds = run(["ctest", *chosen, "-R", f"^{re.escape(name)}$", "-FA", ".*", "--output-on-failure",
                               "-Q"])
        with condition:
            note("test", name, seconds)
            print(f"{seconds:8.1f}  {name}{'' if status == 0 else ': FAILED'}", flush=True)
            if status:
                failed.append(name)
            free += cores
            condition.notify_all()

    for name, properties in tests:
        cores = min(CORES, int(properties.get("PROCESSORS", 1)))
        with condition:
            condition.wait_for(lambda: free >= cores)
            free -= cores
        threads.append(threading.Thread(target=one, args=(name, cores)))
        threads[-1].start()
    for t in threads:
        t.join()
    print(f"{len(tests) - len(failed)} passed, {len(failed)} failed")
    if failed:
        sys.exit("failed: " + ", ".join(failed))


def tables(path, summary):
    by_stage, by_test = collections.defaultdict(collections.Counter), {}
    with open(path, encoding="utf-8") as f:
        for stage, kind, name, seconds in map(json.loads, f):
            by_stage[stage][kind] += seconds
            if kind == "test":
                by_test[f"{stage}: {name}"] = seconds
    for stage, seconds in summary.items():
        by_stage[stage]["all"] = seconds
    total = sum(c["all"] for c in by_stage.values())
    lines = ["| stage | CPU-seconds | build | tests | rest |", "|---|---|---|---|---|"]
    for stage, c in by_stage.items():
        lines.append(f"| {stage} | {c['all']:.0f} | {c['build']:.0f} | {c['test']:.0f} | "
                     f"{c['all'] - c['build'] - c['test']:.0f} |")
    lines += [f"| all | {total:.0f} | | | |", "", "| test | CPU-seconds | share |", "|---|---|---|"]
    for name, seconds in sorted(by_test.items(), key=lambda t: -t[1]):
        if seconds >= 1:
            lines.append(f"| {name} | {seconds:.1f} | {100 * seconds / total:.1f} % |")
    short = [s for s in by_test.values() if s < 1]
    lines.append(f"| {len(short)} tests below 1 s | {sum(short):.1f} | {100 * sum(short) / total:.1f} % |")
    return "\n".join(lines) + "\n"


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--step"]:
        if arguments[1] == "ctest":
            return run_tests(arguments[2:])
        status, seconds = run(arguments[1:])
        note("build", " ".join(arguments[1:]), seconds)
        sys.exit(status)
    out = None
    if arguments[:1] == ["--out"]:
        out, arguments = arguments[1], arguments[2:]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(root, "build", "ci_times.jsonl")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").close()
    environment = dict(os.environ, TG_CI_TIMES=path, TG_CI_TIME=f"{sys.executable} {os.path.abspath(__file__)} --step")
    p = subprocess.Popen([os.path.join(root, ".ci", "run"), *arguments], stdout=subprocess.PIPE, text=True,
                         env=environment)
    summary = {}
    for line in p.stdout:
        print(line, end="", flush=True)
        if found := re.match(r"=== (\w+): .* (\d+) CPU-seconds", line):
            summary[found[1]] = int(found[2])
    text = tables(path, summary)
    print("\n" + text)
    if out:
        with open(out, "w", encoding="utf-8") as f:
            f.write(text)
    sys.exit(p.wait())


if __name__ == "__main__":
    main()
