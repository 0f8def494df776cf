#!/usr/bin/env python3
"""Data parallel steps on this machine, measured beside what `tapegrad inspect --plan --ranks` predicts for them.

    python bench/dist/predict.py build/release/bin [--ranks 2,4] [--threads N] [--steps N] [--warmup N] [--rounds N] [--json FILE]

The model has 6 layers of width 384, 10.7 million parameters; each rank has a micro-batch of 8 x 128 random tokens. The folder has
the programs: bench_ops measures the machine, bench_comm the network of as many ranks, and `tapegrad train` a rank by itself, which
are what the prediction is made of. Where ranks have more threads than there are cpus, the prediction lets them share: a rank then
takes that many times as long as by itself. As many processes at once that send nothing tell what ranks take from each other
besides, by caches and memory: the rest of a step is messages. Nothing is fitted to the steps. `one process` makes the same step with
the threads of all ranks. Medians over the rounds, of which those on a busy machine are left out.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("common", "gpt_training"):
    sys.path.insert(0, os.path.join(HERE, os.pardir, folder))
from compare_torch import RUNS, flags_of, report_of, seconds_of, train
from ranks import RUN, SHAPE, mpirun
from torch_peer import LEAST_SHARE, rounds_of

RUNS[RUN] = SHAPE


def call(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("programs", help="the folder with tapegrad, bench_ops and bench_comm")
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4])
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the timed ones")
    parser.add_argument("--steps", type=int, default=8, help="timed ones, for each run and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", default="", help="what was built, kept in the JSON file")
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()
    args.program = os.path.join(args.programs, "tapegrad")
    args.device, args.cpu_time, args.dtype, args.matmul_precision = "cpu", False, "f32", "highest"
    return args


def main():
    args = parse()
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        call(os.path.join(args.programs, "bench_ops"), "--filter", "gelu", "--machine", path("machine.json"),
             env={**os.environ, "TG_THREADS": str(args.threads)})
        for n in args.ranks:
            call(*mpirun(n), os.path.join(args.programs, "bench_comm"), "--network", path(f"network{n}.json"))
        flags = flags_of(args, RUN, folder)
        fitting = [n for n in args.ranks if n * args.threads <= os.cpu_count()]
        printed = ""

        def measured(accumulate=1, threads=args.threads, **how):
            nonlocal printed
            logs, printed = train(args, folder, {**flags, "accumulate": accumulate, "threads": threads}, modes=("eager",), **how)
            return seconds_of(logs, args.warmup)["eager"]

        def one():
            return {**{("at once", n): measured(copies=n) for n in (1, *args.ranks)},
                    **{("ranks", n): measured(accumulate=n, launch=mpirun(n)) for n in args.ranks},
                    **{("one process", n): measured(accumulate=n, threads=n * args.threads) for n in fitting}}

        rounds, shares = rounds_of(args, os.cpu_count(), RUN, one)
        median = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        alone = median["at once", 1]
        plan = ["inspect", "--plan", "--json", "--window", flags["context"],
                *(w for key in ("layers", "heads", "width", "vocab-size", "context", "batch") for w in (f"--{key}", flags[key]))]

        def predicted(n, rank_ms):
            return json.loads(call(args.program, *plan, "--arch", "nano", "--ranks", n, "--machine", path("machine.json"),
                                   "--network", path(f"network{n}.json"), "--rank-ms", rank_ms))

        rows = []
        head = lambda *names: print(f"{names[0]:>6}", *(f"{name:>13}" for name in names[1:]))
        head("", *3 * ["alone, ms"], "at once, ms", *2 * ["sums, ms"], *2 * ["step, ms"], "step", *2 * ["efficiency, %"])
        head("ranks", "least", "measured", "shared", "measured", *2 * ["predicted", "measured"], "error", "predicted", "measured")
        for n in args.ranks:
            shared = alone * max(1, n * args.threads / os.cpu_count())
            plan_of, least = predicted(n, 1e3 * shared), predicted(n, 0)["steps"][0]
            step_seconds, ranks = 1e-3 * plan_of["steps"][0]["step_ms"], median["ranks", n]
            row = {"ranks": n, "threads": args.threads,
                   "least": 1e-3 * sum(least[f"{phase}_ms"] for phase in ("forward", "backward", "update")), "alone": alone,
                   "shared": shared, "at_once": median["at once", n], "sums_predicted": step_seconds - shared,
                   "sums_measured": ranks - median["at once", n], "step_predicted": step_seconds, "step_measured": ranks}
            percents = {"error": step_seconds / ranks - 1, "efficiency_predicted": alone / step_seconds,
                        "efficiency_measured": alone / ranks}
            rows.append({**row, **percents, "one_process": median.get(("one process", n)), "network": plan_of["network"], "machine": plan_of["machine"]})
            print(f"{n:6}", *(f"{1e3 * x:13.1f}" for x in list(row.values())[2:]), *(f"{100 * x:13.1f}" for x in percents.values()))
        for n in fitting:
            one = median["one process", n]
            print(f"one process, {n * args.threads} threads: {1e3 * one:.1f} ms; {n} ranks make {one / median['ranks', n]:.2f} x its steps")
    print(f"shared: {args.threads} thread(s) of each rank on {os.cpu_count()} cpus, so that a rank takes as many times as long as by itself "
          "as there are threads for a cpu")
    share = min(shares)
    if share < LEAST_SHARE:
        print(f"busy: this program got {100 * share:.0f} % of the processors at the least; errors are of that too")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({**report_of(args, printed), "commit": args.commit,
                       "command": " ".join(["python", *sys.argv]), "run": RUN,
                       "steps": args.steps, "rounds": args.rounds, "share": share, "data_parallel": rows}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
