#!/usr/bin/env python3
"""The rows of bench_ops in PyTorch (as many threads, or the same GPU), side by side.

    python bench/ops/compare_torch.py build/release/bin/bench_ops [--device cuda] [--compile] [--filter TEXT] [--seconds S]
                                  [--rounds N] [--cpu-time]

Both programs run in turn, so that other work on the machine disturbs both; each figure is the median of its rounds, and
the ratio is PyTorch's time over ours: above 1 ours is faster. PyTorch is eager; with --compile each row is measured
with torch.compile too (mode max-autotune-no-cudagraphs for models, default for ops), and the ratio is to the faster.
Backward rows run the backward of one retained graph. On a busy machine --cpu-time compares one thread each, by its
processor time. Rows in tf32 allow TF32 in PyTorch, rows in f32 do not; models in bf16 run under autocast.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time


DTYPES = {"f32": "float32", "tf32": "float32", "f64": "float64", "bf16": "bfloat16"}


def op_run(torch, op, backward, shape, dtype, device, wrap):
    """One run of the row of an op, or None when there is none in PyTorch."""
    F = torch.nn.functional

    def tensor(*s):
        return torch.randn(*s, device=device).to(dtype).requires_grad_(backward)

    if op == "linear":
        m, n, k = shape
        inputs, f = [tensor(m, k), tensor(n, k)], F.linear
    elif op == "layer_norm":
        inputs, f = [tensor(*shape), tensor(shape[1]), tensor(shape[1])], lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b)
    elif op == "rms_norm":
        inputs, f = [tensor(*shape), tensor(shape[1])], lambda x, w: F.rms_norm(x, x.shape[1:], w, 1e-5)
    elif op == "add_layer_norm":
        def f(x, r, w, b):
            s = x + r
            return s, F.layer_norm(s, s.shape[1:], w, b)
        inputs = [tensor(*shape), tensor(*shape), tensor(shape[1]), tensor(shape[1])]
    elif op == "add_rms_norm":
        def f(x, r, w):
            s = x + r
            return s, F.rms_norm(s, s.shape[1:], w, 1e-5)
        inputs = [tensor(*shape), tensor(*shape), tensor(shape[1])]
    elif op == "softmax":
        inputs, f = [tensor(*shape)], lambda x: F.softmax(x, -1)
    elif op == "cross_entropy":
        targets = torch.arange(shape[0], device=device) * 7919 % shape[1]
        inputs, f = [tensor(*shape)], lambda x: F.cross_entropy(x, targets)
    elif op == "attention":
        inputs, f = [tensor(*shape) for _ in "qkv"], lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    elif op == "gelu":
        inputs, f = [tensor(*shape)], F.gelu
    elif op == "swiglu":
        def f(x):
            gate, up = x.chunk(2, -1)
            return F.silu(gate) * up
        inputs = [tensor(*shape)]
    elif op == "add":
        inputs, f = [tensor(*shape), tensor(*shape)], torch.add
    elif op == "adamw_step":
        weights = [tensor(shape[-1]).detach().requires_grad_() for _ in range(shape[0] if len(shape) > 1 else 1)]
        for w in weights:
            w.grad = torch.randn_like(w)
        return torch.optim.AdamW(weights, lr=1e-4, fused=True).step
    else:
        return None
    f = wrap(f)
    if not backward:
        return lambda: f(*inputs)
    y = f(*inputs)
    outs = y if isinstance(y, tuple) else (y,)
    given = [torch.randn(y.shape, device=device).to(dtype) for y in outs]
    return lambda: torch.autograd.grad(outs, inputs, given, retain_graph=True)


# Document 004's models: width, blocks, heads; vocabulary 10 000, RMSNorm, GELU, learned positions, no biases.
GPTS = {"gpt-small-10k": (768, 12, 12), "gpt-medium-10k": (1024, 24, 16)}
VOCABULARY = 10_000


def gpt(torch, name, context):
    nn, F = torch.nn, torch.nn.functional
    width, blocks, heads = GPTS[name]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = (nn.RMSNorm(width, eps=1e-5) for _ in range(2))
            self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.fc, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in self.qkv(self.ln_1(x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(F.gelu(self.fc(self.ln_2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
            self.h, self.ln_f = nn.ModuleList(Block() for _ in range(blocks)), nn.RMSNorm(width, eps=1e-5)
            self.head = nn.Linear(width, VOCABULARY, bias=False)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
            for block in self.h:
                x = block(x)
            return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1).float(), targets.flatten())

    return Gpt()


def gpt_run(torch, name, part, shape, dtype, device, wrap):
    model = gpt(torch, name, shape[1]).to(device)
    tokens, targets = (torch.randint(VOCABULARY, shape, device=device) for _ in range(2))
    loss_of = wrap(model)
    parameters = list(model.parameters())

    def loss():
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=dtype == torch.bfloat16):
            return loss_of(tokens, targets)

    if part == "forward":
        return loss
    if part == "backward":
        kept = loss()
        return lambda: torch.autograd.grad(kept, parameters, retain_graph=True)
    return lambda: torch.autograd.grad(loss(), parameters)


def run_of(torch, row, device, compiled):
    dtype = getattr(torch, DTYPES.get(row["dtype"], "float32"))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = row["dtype"] == "tf32"
    name, _, part = row["name"].rpartition("_")
    if name in GPTS:
        wrap = (lambda f: torch.compile(f, mode="max-autotune-no-cudagraphs")) if compiled else (lambda f: f)
        return gpt_run(torch, name, part, row["shape"], dtype, device, wrap)
    backward = part == "backward"
    wrap = torch.compile if compiled else (lambda f: f)
    return op_run(torch, name if backward else row["name"], backward, row["shape"], dtype, device, wrap)


def time_run(torch, run, device, now, seconds):
    """As bench_ops measures: seconds per run, the median; on a GPU as many runs as take some ms, then synchronised."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    run()
    wait()
    start = now()
    run()
    wait()
    repeats = 1 if device == "cpu" else max(1, min(1000, int(0.005 / max(now() - start, 1e-7))))

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
        times.append(now() - t)
    return statistics.median(times) / repeats


def time_torch(report, seconds, with_compile):
    import torch

    torch.set_num_threads(report["machine"]["threads"])
    torch.manual_seed(1)
    device = report["machine"]["device"]
    now = time.process_time if report["clock"] == "processor" else time.perf_counter
    result = {"version": torch.__version__, "eager": {}, "compiled": {}}
    for compiled in (False, True) if with_compile else (False,):
        for row in report["rows"]:
            if compiled and row["name"] == "adamw_step":
                continue
            run = run_of(torch, row, device, compiled)
            if run is not None:
                result["compiled" if compiled else "eager"][text(row)] = time_run(torch, run, device, now, seconds)
            del run
        if compiled:
            torch._dynamo.reset()
    return result


def text(row):
    return f"{row['name']} {'x'.join(map(str, row['shape']))} {row['dtype']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?", help="bench_ops")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--filter", default="", help="only rows with this in their text")
    parser.add_argument("--seconds", type=float, default=0.2, help="at least, for each row and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="one thread each, by its processor time")
    parser.add_argument("--commit", default="", help="what was built, kept in the JSON file")
    parser.add_argument("--json", help="write the table to this file")
    parser.add_argument("--time-torch", metavar="REPORT", help=argparse.SUPPRESS)  # the other process
    args = parser.parse_args()
    if args.time_torch:
        with open(args.time_torch) as f:
            json.dump(time_torch(json.load(f), args.seconds, args.compile), sys.stdout)
        return
    if not args.program:
        parser.error("name the program bench_ops")

    ours, theirs, rows, version = {}, {"eager": {}, "compiled": {}}, {}, ""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ours.json")
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
            subprocess.run(
                [args.program, "--json", path, "--filter", args.filter, "--seconds", str(args.seconds), "--device", args.device]
                + ["--cpu-time"] * args.cpu_time,
                check=True, stdout=subprocess.DEVNULL)
            with open(path) as f:
                report = json.load(f)
            out = subprocess.run(
                [sys.executable, __file__, "--time-torch", path, "--seconds", str(args.seconds)] + ["--compile"] * args.compile,
                check=True, stdout=subprocess.PIPE).stdout
            times = json.loads(out)
            version = times["version"]
            for row in report["rows"]:
                if text(row) in times["eager"]:
                    rows[text(row)] = row
                    ours.setdefault(text(row), []).append(row["seconds"])
                    for how, all_times in theirs.items():
                        if text(row) in times[how]:
                            all_times.setdefault(text(row), []).append(times[how][text(row)])
    machine = report["machine"]
    print(f"{machine['cpu']}, {machine['device']}: {machine['backend']}, {machine['compiler']}; PyTorch {version}")
    print(f"{'':44} {'tapegrad us':>12} {'PyTorch us':>12} {'compiled us':>12} {'ratio':>7}")
    table = []
    for name in rows:
        a, b = statistics.median(ours[name]), statistics.median(theirs["eager"][name])
        best = theirs["eager"][name]
        compiled = theirs["compiled"].get(name)
        if compiled:
            best = [min(pair) for pair in zip(best, compiled)]
        ratio = statistics.median(y / x for x, y in zip(ours[name], best))
        shown = f"{1e6 * statistics.median(compiled):12.1f}" if compiled else f"{'':12}"
        print(f"{name:44} {1e6 * a:12.1f} {1e6 * b:12.1f} {shown} {ratio:7.2f}")
        table.append({"name": name, "seconds": a, "torch_seconds": b, "ratio": ratio,
                      "torch_compiled_seconds": statistics.median(compiled) if compiled else None})
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"machine": machine, "torch": version, "date": report["date"], "commit": args.commit,
                       "command": " ".join(["python", *sys.argv]), "rows": table}, f, indent=1)


if __name__ == "__main__":
    main()
