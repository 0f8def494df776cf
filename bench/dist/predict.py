#!/usr/bin/env python3
"""Data parallel steps, predicted: on this machine compared with measured ones, or for H100s on paper.

A step is the minimum time of its ops on a machine (`tapegrad inspect --roofline`: forward, backward, update), scaled
to a single rank's time if measured, plus the messages that backward does not hide. A message of m bytes takes alpha +
m beta (Hockney, The communication challenge for MPP, 1994); a rank sends the N - 1 messages of an all_to_all or
all_gather sequentially, within its node and between nodes (Thakur, Rabenseifner and Gropp, Optimization of collective
communication operations in MPICH, 2005). Memory is that of `tapegrad inspect --plan`.

Measured: the model has 6 layers of width 384, 10.7 million parameters; each rank has a micro-batch of 8 x 128 random
tokens. The prediction uses bench_ops for the machine, bench_comm for the network of that many ranks, and `tapegrad
train` for a single rank. If ranks have more threads than there are cpus, a rank takes longer than alone by that factor.
Independent processes at once measure what ranks lose to shared caches and memory: the rest of a step is messages.
Nothing is fitted to the steps. `one process` makes the same step with the threads of all ranks. Medians over the
rounds, without those on a busy machine.
"""
import json, math, os, statistics, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("common", "gpt_training"):
    sys.path.insert(0, os.path.join(HERE, os.pardir, folder))
from results_file import write
from torch_peer import LEAST_SHARE, numbers, parse, rounds_of
from train_runs import OF_RANKS, flags_of, mpirun, report_of, seconds_of, train

RUN, = OF_RANKS
# Nodes of 8 H100 SXM5: NVLink 4 has 450 GB/s per direction, a GPU's 400 Gb/s InfiniBand 50 GB/s; 0.8 of these are
# reached. Message latencies are assumed. Sums make five passes over GPU memory (2900 GB/s): pack, add, unpack.
H100 = {"name": "h100", "ranks_per_node": 8, "us_in_node": 2, "gb_per_s_in_node": 0.8 * 450, "us_between": 5,
        "gb_per_s_between": 0.8 * 50, "gb_per_s_sum": 2900 / 5}


def fit(exchanges, messages):
    """(alpha, beta) such that `messages` sequential messages fit all (bytes, seconds) by least squares of relative
    errors, so that short ones weigh the same as long ones. A value that noise makes negative is 0, and the other is
    fitted alone."""
    x = [messages / seconds for _, seconds in exchanges]
    y = [size * a for (size, _), a in zip(exchanges, x)]
    dot = lambda u, v: sum(map(lambda a, b: a * b, u, v))
    aa, ab, bb, a, b = dot(x, x), dot(x, y), dot(y, y), sum(x), sum(y)
    det = aa * bb - ab * ab
    alpha, beta = ((a * bb - b * ab) / det, (b * aa - a * ab) / det) if det > 0 else (0, -1)
    return (a / aa, 0) if beta < 0 else (0, b / bb) if alpha < 0 else (alpha, beta)


def network_of(measured):
    """The network of a bench_comm run on one machine."""
    rows = {(r["collective"], r["bytes"]): r["seconds"]["median"] for r in measured["collectives"]}
    alpha, beta = fit([(size, s) for (name, size), s in rows.items() if name in ("all_to_all", "all_gather")],
                      measured["ranks"] - 1)
    if measured["ranks_per_node"] != measured["ranks"] or not beta:
        sys.exit("the ranks are on several machines, or longer messages took no more time: measure again where nothing "
                 "else runs")
    size = max(size for _, size in rows)
    us, rate = 1e6 * alpha, 1e-9 / beta
    return {"name": "measured", "ranks_per_node": measured["ranks"], "us_in_node": us, "gb_per_s_in_node": rate,
            "us_between": us,
            "gb_per_s_between": rate, "gb_per_s_sum": 1e-9 * size / rows["its sums alone", size]}


def exchange(net, ranks, size):
    """Seconds of a rank on the smallest node for a message of `size` bytes to and from every other rank."""
    here = min(ranks, ranks % net["ranks_per_node"] or net["ranks_per_node"])
    return sum(n * (1e-6 * net[f"us_{where}"] + size / (1e9 * net[f"gb_per_s_{where}"]))
               for n, where in ((here - 1, "in_node"), (ranks - here, "between")))


def sum_cost(net, ranks, sent, received):
    """An all-reduce in rounds (core/comm/collectives.h): all_to_all of `sent` bytes, sum, all_gather of `received`
    bytes."""
    part, of_rank = min(1 << 20, (64 << 20) // ranks), sent / ranks
    rounds = math.ceil(of_rank / part)
    message = of_rank / rounds
    return {"rounds": rounds, "message": message, "all_to_all": rounds * exchange(net, ranks, message),
            "sum": sent / (1e9 * net["gb_per_s_sum"]),
            "all_gather": rounds * exchange(net, ranks, message * received / sent),
            "buffers": ranks * min(of_rank, part) * (2 + received / sent)}


def exposed(buckets, seconds, backward):
    """The time of equal reductions, ready at equal intervals of backward and run one at a time, after backward
    ends."""
    return max(seconds, buckets * seconds - (buckets - 1) / buckets * backward)


def step(net, ranks, phases, gradients, shard=False, bucket_mb=0, rank_seconds=0):
    """A step of ranks with one micro-batch each. phases: minimum seconds of forward, backward and update;
    gradients: their bytes as backward computes them, and those of their sums."""
    scale = rank_seconds / sum(phases) if rank_seconds else 1
    forward, backward, update = (scale * s for s in phases)
    alone = forward + backward + update
    s = {"ranks": ranks, "forward": forward, "backward": backward, "update": update / ranks if shard else update}
    sent, received = gradients
    # gradient_buckets() of models/optim/partition.cpp
    bucket = 1e6 * bucket_mb or 4 * max((25 << 20) // 4, ranks * 4 * (1 << 14))
    n = s["buckets"] = math.ceil(received / bucket)
    one = sum_cost(net, ranks, sent / n, received / n)
    s["parameters"] = 0
    # An all_gather of parameters after the update replaces that of the sums; nothing hides it.
    if shard:
        one["all_gather"], s["parameters"] = 0, n * sum_cost(net, ranks, received / n, received / n)["all_gather"]
    messages = one["all_to_all"] + one["all_gather"] + one["sum"]
    s |= {key: n * one[key] for key in ("rounds", "all_to_all", "sum", "all_gather")}
    s |= {key: one[key] for key in ("message", "buffers")}
    s["scalars"] = 4 * exchange(net, ranks, 8)  # the loss, the generator's offset, the signal flag
    beside = s["sum"] - one["sum"]  # sums alternate with backward
    s["exposed"] = min(n * messages, beside + exposed(n, messages, backward + beside))
    s["hidden"] = n * messages - s["exposed"]
    s["step"] = forward + backward + s["update"] + s["exposed"] + s["parameters"] + s["scalars"]
    return s | {"efficiency": alone / s["step"], "messages": 2 * s["rounds"] * (ranks - 1)}


def call(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def inspected(program, kind, *words):
    return json.loads(call(program, "inspect", f"--{kind}", "--json", *words))


def phases_of(program, machine, *words):
    """(The machine, minimum seconds of forward, backward and update on it)"""
    m = inspected(program, "roofline", "--device", machine, *words)["machines"][0]
    return m, [1e-3 * m[f"{phase}_ms"] for phase in ("forward", "backward", "update")]


def plan_of(program, dtype, *words):
    """The bytes of a rank, without recomputation."""
    return inspected(program, "plan", *words)["plans"][0 if dtype == "f32" else 3]


def on_paper(args):
    """The tables of H100s, with one micro-batch of 4 windows in bf16 per rank."""
    for arch in args.on_paper.split(","):
        model = ["--arch", arch, "--batch", "4"]
        phases = phases_of(args.program, "h100", *model, "--dtype", "bf16")[1]
        sent = plan_of(args.program, "bf16", *model)["gradients"]
        for title, shard, bucket_mb in (("", [], 0), (", sharded optimiser", ["--shard-optimizer", "true"], 0),
                                        (", buckets of 1600 MB", [], 1600)):
            plan = lambda n, *words: plan_of(args.program, "bf16", *model, "--ranks", n, *words)
            memory = [plan(n, *shard) for n in args.ranks]
            steps = [step(H100, n, phases, (sent, plan(n)["gradients"]), bool(shard), bucket_mb) for n in args.ranks]
            print(f"{arch}, 4 windows a rank in bf16{title}")
            row = lambda name, cells: print(f"{name:30}", *(f"{x:>12}" for x in cells))
            for name, key, scale, digits in (
                    ("ranks", "ranks", 1, 0), ("forward, ms", "forward", 1e3, 2), ("backward, ms", "backward", 1e3, 2),
                    ("update, ms", "update", 1e3, 2),
                    ("buckets of gradients", "buckets", 1, 0), ("all_to_all, ms", "all_to_all", 1e3, 2),
                    ("sums, ms", "sum", 1e3, 2),
                    ("all_gather, ms", "all_gather", 1e3, 2), ("hidden behind backward, ms", "hidden", 1e3, 2),
                    ("messages of a rank", "messages", 1, 0),
                    ("kB of a message", "message", 1e-3, 2), ("all_gather of parameters, ms", "parameters", 1e3, 2),
                    ("loss and signals, ms", "scalars", 1e3, 2), ("the step, ms", "step", 1e3, 2),
                    ("efficiency, %", "efficiency", 100, 2),
                    ("parts of all ranks, GB", "buffers", 1e-9, 2)):
                row(name, (f"{scale * s[key]:.{digits}f}" for s in steps))
            for key in ("weights", "moments", "gradients", "activations", "peak"):
                row(f"{key} of a rank, GB", (f"{1e-9 * m[key]:.2f}" for m in memory))
            print()


def main():
    args, error = parse(__doc__, "the folder with tapegrad, bench_ops and bench_comm", steps=(2, 8), threads=1,
                        on_paper={"metavar": "MODELS", "help": "tables of H100s for these, and nothing measured"},
                        ranks=numbers())
    args.programs, args.program = args.program, os.path.join(args.program, "tapegrad")
    args.dtype, args.matmul_precision = "f32", "highest"
    args.ranks = args.ranks or ([8, 64, 1024, 16384] if args.on_paper else [2, 4])
    if min(args.ranks) < 2 or args.cpu_time or args.device != "cpu":
        error("--ranks are two or more; it measures wall time on the CPU: leave --cpu-time and --device out")
    if args.on_paper:
        return on_paper(args)
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        call(os.path.join(args.programs, "bench_ops"), "--filter", "gelu", "--machine", path("machine.json"),
             env={**os.environ, "TG_THREADS": str(args.threads)})
        networks = {}
        for n in args.ranks:
            call(*mpirun(n), os.path.join(args.programs, "bench_comm"), "--json", path(f"comm{n}.json"))
            with open(path(f"comm{n}.json")) as f:
                networks[n] = network_of(json.load(f))
        flags = flags_of(args, RUN, folder)
        fitting = [n for n in args.ranks if n * args.threads <= os.cpu_count()]
        printed = ""

        def measured(accumulate=1, threads=args.threads, **how):
            nonlocal printed
            logs, printed = train(args, folder, {**flags, "accumulate": accumulate, "threads": threads},
                                  modes=("eager",), **how)
            return seconds_of(logs, args.warmup)["eager"]

        def one():
            return {**{("at once", n): measured(copies=n) for n in (1, *args.ranks)},
                    **{("ranks", n): measured(accumulate=n, launch=mpirun(n)) for n in args.ranks},
                    **{("one process", n): measured(accumulate=n, threads=n * args.threads) for n in fitting}}

        rounds, shares = rounds_of(args, os.cpu_count(), RUN, one)
        median = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        alone = median["at once", 1]
        model = ["--arch", "nano",
                 *(w for key in ("layers", "heads", "width", "vocab-size", "context", "batch")
                   for w in (f"--{key}", flags[key]))]
        machine, phases = phases_of(args.program, path("machine.json"), *model)
        rows = []
        head = lambda *names: print(f"{names[0]:>6}", *(f"{name:>13}" for name in names[1:]))
        head("", *3 * ["alone, ms"], "at once, ms", *2 * ["sums, ms"], *2 * ["step, ms"], "step",
             *2 * ["efficiency, %"])
        head("ranks", "least", "measured", "shared", "measured", *2 * ["predicted", "measured"], "error", "predicted",
             "measured")
        for n in args.ranks:
            shared = alone * max(1, n * args.threads / os.cpu_count())
            gradients = [plan_of(args.program, "f32", *model, "--ranks", ranks)["gradients"] for ranks in (1, n)]
            predicted, ranks = step(networks[n], n, phases, gradients, rank_seconds=shared)["step"], median["ranks", n]
            row = {"ranks": n, "threads": args.threads, "least": sum(phases), "alone": alone, "shared": shared,
                   "at_once": median["at once", n], "sums_predicted": predicted - shared,
                   "sums_measured": ranks - median["at once", n],
                   "step_predicted": predicted, "step_measured": ranks}
            percents = {"error": predicted / ranks - 1, "efficiency_predicted": alone / predicted,
                        "efficiency_measured": alone / ranks}
            rows.append({**row, **percents, "one_process": median.get(("one process", n)), "network": networks[n],
                         "machine": machine})
            print(f"{n:6}", *(f"{1e3 * x:13.1f}" for x in list(row.values())[2:]),
                  *(f"{100 * x:13.1f}" for x in percents.values()))
        for n in fitting:
            whole = median["one process", n]
            print(f"one process, {n * args.threads} threads: {1e3 * whole:.1f} ms; {n} ranks make "
                  f"{whole / median['ranks', n]:.2f} x its steps")
    print(f"shared: {args.threads} thread(s) of each rank on {os.cpu_count()} cpus, so that a rank takes as many times "
          f"as long as by itself "
          "as there are threads for a cpu")
    share = min(shares)
    if share < LEAST_SHARE:
        print(f"busy: this program got {100 * share:.0f} % of the processors at the least, which adds to the errors")
    if args.json:
        write(args.json,
              {**report_of(args, printed), "run": RUN, "steps": args.steps, "rounds": args.rounds, "share": share,
                          "data_parallel": rows}, args.commit)


if __name__ == "__main__":
    main()
