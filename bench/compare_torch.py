#!/usr/bin/env python3
"""The rows of bench_ops in PyTorch (eager, CPU, as many threads), side by side.

    python bench/compare_torch.py build/release/bin/bench_ops [--filter TEXT] [--seconds S] [--rounds N] [--cpu-time]

Both programs run in turn, so that other work on the machine disturbs both; each figure is the median of its rounds, and
the ratio is PyTorch's time over ours: above 1 ours is faster. Backward rows run the backward of one retained graph.
On a busy machine --cpu-time compares one thread each, by its processor time.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time


def runs(torch, name, shape, dtype):
    """One run of the row, or None when there is none in PyTorch."""
    F = torch.nn.functional
    dtype = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}[dtype]
    backward = name.endswith("_backward")
    op = name.removesuffix("_backward")

    def tensor(*s):
        return torch.randn(*s).to(dtype).requires_grad_(backward)

    if op == "linear":
        m, n, k = shape
        inputs, f = [tensor(m, k), tensor(n, k)], F.linear
    elif op == "layer_norm":
        inputs, f = [tensor(*shape), tensor(shape[1]), tensor(shape[1])], lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b)
    elif op == "rms_norm":
        inputs, f = [tensor(*shape), tensor(shape[1])], lambda x, w: F.rms_norm(x, x.shape[1:], w, 1e-5)
    elif op == "softmax":
        inputs, f = [tensor(*shape)], lambda x: F.softmax(x, -1)
    elif op == "cross_entropy":
        targets = torch.arange(shape[0]) * 7919 % shape[1]
        inputs, f = [tensor(*shape)], lambda x: F.cross_entropy(x, targets)
    elif op == "attention":
        inputs, f = [tensor(*shape) for _ in "qkv"], lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    elif op == "gelu":
        inputs, f = [tensor(*shape)], F.gelu
    elif op == "add":
        inputs, f = [tensor(*shape), tensor(*shape)], torch.add
    elif op == "adamw_step":
        w = torch.randn(*shape).requires_grad_()
        w.grad = torch.randn(*shape)
        return torch.optim.AdamW([w], lr=1e-4, fused=True).step
    else:
        return None
    if not backward:
        return lambda: f(*inputs)
    y = f(*inputs)
    dy = torch.randn(y.shape).to(dtype)
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)


def time_torch(report, seconds):
    """As harness.cpp measures: seconds per run, the median."""
    import torch

    torch.set_num_threads(report["machine"]["threads"])
    torch.manual_seed(1)
    now = time.process_time if report["clock"] == "processor" else time.perf_counter
    result = {"version": torch.__version__}
    for row in report["rows"]:
        run = runs(torch, row["name"], row["shape"], row["dtype"])
        if run is None:
            continue
        start = now()
        while now() - start < seconds / 3:
            run()
        times, start = [], now()
        while len(times) < 9 or now() - start < seconds:
            t = now()
            run()
            times.append(now() - t)
        result[text(row)] = statistics.median(times)
        del run
    return result


def text(row):
    return f"{row['name']} {'x'.join(map(str, row['shape']))} {row['dtype']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?", help="bench_ops")
    parser.add_argument("--filter", default="", help="only rows with this in their text")
    parser.add_argument("--seconds", type=float, default=0.2, help="at least, for each row and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="one thread each, by its processor time")
    parser.add_argument("--json", help="write the table to this file")
    parser.add_argument("--time-torch", metavar="REPORT", help=argparse.SUPPRESS)  # the other process
    args = parser.parse_args()
    if args.time_torch:
        with open(args.time_torch) as f:
            json.dump(time_torch(json.load(f), args.seconds), sys.stdout)
        return
    if not args.program:
        parser.error("name the program bench_ops")

    ours, theirs, rows, version = {}, {}, {}, ""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ours.json")
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
            subprocess.run(
                [args.program, "--json", path, "--filter", args.filter, "--seconds", str(args.seconds)]
                + ["--cpu-time"] * args.cpu_time,
                check=True, stdout=subprocess.DEVNULL)
            with open(path) as f:
                report = json.load(f)
            out = subprocess.run(
                [sys.executable, __file__, "--time-torch", path, "--seconds", str(args.seconds)],
                check=True, stdout=subprocess.PIPE).stdout
            times = json.loads(out)
            version = times.pop("version")
            for row in report["rows"]:
                if text(row) in times:
                    rows[text(row)] = row
                    ours.setdefault(text(row), []).append(row["seconds"])
                    theirs.setdefault(text(row), []).append(times[text(row)])
    machine = report["machine"]
    print(f"{machine['cpu']}, {machine['backend']}, {machine['compiler']}; PyTorch {version}")
    print(f"{'':44} {'tapegrad us':>12} {'PyTorch us':>12} {'ratio':>7}")
    table = []
    for name in rows:
        a, b = statistics.median(ours[name]), statistics.median(theirs[name])
        ratio = statistics.median(y / x for x, y in zip(ours[name], theirs[name]))
        print(f"{name:44} {1e6 * a:12.1f} {1e6 * b:12.1f} {ratio:7.2f}")
        table.append({"row": name, "seconds": a, "torch_seconds": b, "ratio": ratio})
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"machine": machine, "torch": version, "date": report["date"], "rows": table}, f, indent=1)


if __name__ == "__main__":
    main()
