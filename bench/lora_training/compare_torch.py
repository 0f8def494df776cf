#!/usr/bin/env python3
"""The document's ids of bench_training in PyTorch, side by side.

    python bench/lora_training/compare_torch.py build/release/bin/bench_training [--device cuda] [--filter TEXT] [--seconds S]
                                           [--rounds N] [--cpu-time] [--json FILE]

Id by id, ours runs eager and compiled and PyTorch eager and with torch.compile, on the CPU with one thread and with as
many as there are cpus, in turn and in several rounds, so that other work on the machine disturbs all. Of each side the
way counts that is the fastest by its median over the rounds; the ratio is the median over the rounds of PyTorch's time
over ours, above 1 where ours is faster. AdamW is fused or foreach, whichever is faster. LoRA's A and B require
gradients on both sides. Each time is the median of samples that end synchronised. On a busy machine --cpu-time compares
one thread each, by its processor time.
"""
import argparse, math, os, statistics, sys, tempfile, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from torch_peer import Peer, add_flags, answer, compared, finish, report_of

# x, rank: document 000's LoRA layers are square, and alpha is 2 rank
LORA = {
    "lora_forward/forward/small_512x512_r8": ((4, 16, 512), 8),
    "lora_forward/forward/medium_1024x1024_r8": ((4, 16, 1024), 8),
    "lora_forward/forward/large_2048x2048_r8": ((4, 16, 2048), 8),
    "lora_forward/forward/small_512x512_r16": ((4, 16, 512), 16),
    "lora_rank_scaling/forward/rank_4": ((2, 32, 1024), 4),
    "lora_rank_scaling/forward/rank_8": ((2, 32, 1024), 8),
    "lora_rank_scaling/forward/rank_16": ((2, 32, 1024), 16),
    "lora_rank_scaling/forward/rank_32": ((2, 32, 1024), 32),
    "lora_rank_scaling/forward/rank_64": ((2, 32, 1024), 64),
    "lazy_vs_eager_lora/eager_forward": ((4, 16, 512), 8),
    "lazy_vs_eager_lora/lazy_forward_sync": ((4, 16, 512), 8),
}
LAYERS = ("softmax_stable", "layer_norm", "rms_norm")
GRADIENT, ADAMW, STEP = (
    "gradient_computation/forward_backward",
    "optimizer_step/adamw_step",
    "full_training_step/complete_iteration",
)
IDS = list(LORA)[:4] + [GRADIENT, ADAMW, STEP] + [f"layer_operations/{name}" for name in LAYERS] + list(LORA)[4:]


def lora_forward(x, a, b):
    return x @ a @ b * 2.0


def lora(torch, shape, rank, device, b_is_zero=False):
    x = torch.randn(shape, device=device)
    a = (torch.randn(shape[-1], rank, device=device) / math.sqrt(rank)).requires_grad_()
    b = torch.randn(rank, shape[-1], device=device)
    return x, a, (b.zero_() if b_is_zero else b).requires_grad_()


def loss_function(torch):
    return lambda x, a, b, labels: torch.nn.functional.cross_entropy(lora_forward(x, a, b).flatten(0, 1), labels)


def ways_of(torch, name, device):
    """The ways to run an id once, by name: functions that make the run."""
    F = torch.nn.functional
    wraps = {"eager": lambda f: f, "compile": torch.compile}

    def forward(wrap):
        x, a, b = lora(torch, *LORA[name], device)
        f = wrap(lora_forward)
        return lambda: f(x, a, b)

    def gradient(wrap):
        x, a, b = lora(torch, (2, 16, 512), 8, device, b_is_zero=True)
        labels, f = torch.zeros(2 * 16, dtype=torch.int64, device=device), wrap(loss_function(torch))
        return lambda: torch.autograd.grad(f(x, a, b, labels), (a, b))

    def adamw(wrap, how):
        w = torch.randn(512, 512, device=device, requires_grad=True)
        w.grad = torch.randn_like(w)
        return wrap(torch.optim.AdamW([w], lr=1e-4, weight_decay=0.01, **{how: True}).step)

    def step(wrap, how):
        x, a, b = lora(torch, (4, 64, 512), 8, device, b_is_zero=True)
        labels, f = torch.zeros(4 * 64, dtype=torch.int64, device=device), wrap(loss_function(torch))
        optimiser = torch.optim.AdamW([a, b], lr=1e-4, weight_decay=0.01, **{how: True})

        def run():
            optimiser.zero_grad(set_to_none=True)
            f(x, a, b, labels).backward()
            optimiser.step()

        return run

    def layer(wrap):
        functions = {
            "softmax_stable": lambda x: F.softmax(x, -1),
            "layer_norm": lambda x: F.layer_norm(x, (1024,), eps=1e-5),
            "rms_norm": lambda x: F.rms_norm(x, (1024,), eps=1e-5),
        }
        x, f = torch.randn(4, 16, 1024, device=device), wrap(functions[name.split("/")[1]])
        return lambda: f(x)

    if name in (ADAMW, STEP):
        make = adamw if name == ADAMW else step
        return {f"{w} {how}": (lambda wrap=wrap, how=how: make(wrap, how))
                for w, wrap in wraps.items() for how in ("fused", "foreach")}
    make = forward if name in LORA else gradient if name == GRADIENT else layer
    return {w: (lambda wrap=wrap: make(wrap)) for w, wrap in wraps.items()}


def time_run(run, wait, now, seconds):
    """Seconds per run, the median of samples of about 2 ms, each of which ends synchronised."""
    run()
    wait()
    start = now()
    run()
    wait()
    repeats = max(1, min(10_000, int(0.002 / max(now() - start, 1e-7))))

    def sample():
        for _ in range(repeats):
            run()
        wait()

    start = now()
    while now() - start < seconds / 3:
        sample()
    times, start = [], now()
    while len(times) < 9 or now() - start < seconds:
        t = now()
        sample()
        times.append((now() - t) / repeats)
    return statistics.median(times)


def serve(args):
    import torch

    torch.set_num_threads(args.serve)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    now = time.process_time if args.cpu_time else time.perf_counter
    wait = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None

    def prepare(name):
        runs = {}
        for way, make in ways_of(torch, name, args.device).items():
            try:
                run = make()
                for _ in range(3):
                    run()
                runs[f"{way}, {args.serve} thread(s)"] = run
            except Exception as e:  # a way that PyTorch does not offer here
                print(f"PyTorch, {name}, {way}: {type(e).__name__}: {str(e).splitlines()[0]}", file=sys.stderr)
        return lambda: {way: time_run(run, wait, now, args.seconds) for way, run in runs.items()}

    answer(torch, prepare)


def ours(args, name, path):
    """Mode -> seconds, and the report of the last run."""
    times = {}
    for mode in ("eager", "compiled"):
        report = report_of(
            [args.program, "--mode", mode, "--device", args.device, "--filter", name, "--samples", "20", "--warmup",
             str(args.seconds / 3), "--target", str(args.seconds)] + ["--cpu-time"] * args.cpu_time, path)
        times[mode] = next(r["median"]["estimate"] for r in report["rows"] if r["id"] == name)
    return times, report


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?", help="bench_training")
    parser.add_argument("--filter", default="", help="only ids with this in them")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each id, way and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="one thread each, by its processor time")
    add_flags(parser)
    args = parser.parse_args()
    if args.serve:
        return serve(args)
    ids = [name for name in IDS if args.filter in name]
    if not args.program or not ids:
        parser.error("name the program bench_training" if ids else f"no id has '{args.filter}' in it")

    threads = [1] if args.cpu_time or args.device != "cpu" else sorted({1, os.cpu_count()})
    flags = ["--device", args.device, "--seconds", args.seconds] + ["--cpu-time"] * args.cpu_time
    torches, table = [Peer(__file__, n, *flags) for n in threads], []
    with tempfile.TemporaryDirectory() as folder:
        for name in ids:
            mine, theirs = [], []
            for number in range(args.rounds):
                print(f"{name}: round {number + 1} of {args.rounds}", file=sys.stderr)
                times, report = ours(args, name, os.path.join(folder, "ours.json"))
                mine.append(times)
                theirs.append({way: t for torch in torches for way, t in torch(name).items()})
            if not table:
                machine = report["machine"]
                print(f"{machine['cpu']}, {report['device']}: {machine['backend']}, {machine['compiler']}; "
                      f"PyTorch {torches[0].version}; {args.rounds} rounds" + ", one thread each, processor time" * args.cpu_time)
                print(f"{'':42} {'tapegrad us':>12} {'':10} {'PyTorch us':>12} {'':30} {'ratio':>7}")
            row = compared(name, mine, theirs)
            print(f"{name:42} {1e6 * row['seconds']:12.1f} {row['mode']:10} {1e6 * row['torch_seconds']:12.1f} "
                  f"{row['torch_way']:30} {row['ratio']:7.2f}", flush=True)
            table.append(row)
    finish(args, report, torches[0].version, table, clock="processor" if args.cpu_time else "wall", rounds=args.rounds)


if __name__ == "__main__":
    main()
