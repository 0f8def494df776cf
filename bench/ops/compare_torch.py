#!/usr/bin/env python3
"""The rows of bench_ops, compared with PyTorch (equal threads, or the same GPU).

Backward rows repeat the backward of one retained graph. Rows in tf32 allow TF32 in PyTorch, rows in f32 do not.
"""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from torch_peer import Peer, in_turn, parse, report_of, table, timer

DTYPES = {"f32": "float32", "tf32": "float32", "f64": "float64", "bf16": "bfloat16"}


def added(norm):
    """A function of x, r and the norm's weights: their sum and its norm."""
    def f(F, x, r, *weights):
        y = x + r
        return y, norm(F, y, *weights)
    return f


def layer_norm(F, x, w, b):
    return F.layer_norm(x, x.shape[1:], w, b)


def rms_norm(F, x, w):
    return F.rms_norm(x, x.shape[1:], w, 1e-5)


def swiglu(F, x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


OPS = {  # row shape -> input shapes; the function
    "linear": (lambda m, n, k: [(m, k), (n, k)], lambda F, x, w: F.linear(x, w)),
    "layer_norm": (lambda r, c: [(r, c), (c,), (c,)], layer_norm),
    "rms_norm": (lambda r, c: [(r, c), (c,)], rms_norm),
    "add_layer_norm": (lambda r, c: [(r, c), (r, c), (c,), (c,)], added(layer_norm)),
    "add_rms_norm": (lambda r, c: [(r, c), (r, c), (c,)], added(rms_norm)),
    "softmax": (lambda r, c: [(r, c)], lambda F, x: F.softmax(x, -1)),
    "cross_entropy": (lambda r, c: [(r, c)], lambda F, x, targets: F.cross_entropy(x, targets)),
    "attention": (lambda *s: [s, s, s], lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    "attention_dropout": (lambda *s: [s, s, s], lambda F, q, k, v: F.scaled_dot_product_attention(
        q, k, v, dropout_p=0.1, is_causal=True)),
    "gelu": (lambda r, c: [(r, c)], lambda F, x: F.gelu(x)),
    "swiglu": (lambda r, c: [(r, c)], swiglu),
    "add": (lambda r, c: [(r, c), (r, c)], lambda F, x, y: x + y),
}
def op_run(torch, op, backward, shape, dtype, device, wrap):
    """One run of an op's row."""
    tensor = lambda s: torch.randn(*s, device=device).to(dtype).requires_grad_(backward)
    if op == "adamw_step":
        weights = [tensor(shape[-1:]).detach().requires_grad_() for _ in range(shape[0] if len(shape) > 1 else 1)]
        for w in weights:
            w.grad = torch.randn_like(w)
        return torch.optim.AdamW(weights, lr=1e-4, fused=True).step
    shapes, function = OPS[op]
    inputs = [tensor(s) for s in shapes(*shape)]
    targets = [torch.arange(shape[0], device=device) * 7919 % shape[1]] if op == "cross_entropy" else []
    f = wrap(lambda *x: function(torch.nn.functional, *x, *targets))
    if not backward:
        return lambda: f(*inputs)
    y = f(*inputs)
    outs = y if isinstance(y, tuple) else (y,)
    given = [torch.randn(y.shape, device=device).to(dtype) for y in outs]
    return lambda: torch.autograd.grad(outs, inputs, given, retain_graph=True)


def ways_of(torch, row, args):
    """The ways to run a row, as functions that measure; none if PyTorch has no such op."""
    dtype = getattr(torch, DTYPES.get(row["dtype"], "float32"))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = row["dtype"] == "tf32"
    backward = row["name"].endswith("_backward")
    wraps = {"eager": lambda f: f} | ({"compile": torch.compile} if args.compile and row["name"] != "adamw_step"
                                      else {})
    # like bench_ops: on a GPU, repeated runs of some milliseconds
    op = row["name"].removesuffix("_backward")
    return {way: timer(args, lambda wrap=wrap: op_run(torch, op, backward, row["shape"], dtype,
                                                      args.device, wrap), 0.005 if args.device != "cpu" else 0)
            for way, wrap in wraps.items()}


def text(row):
    return f"{row['name']} {'x'.join(map(str, row['shape']))} {row['dtype']}"


def main():
    args, _ = parse(__doc__, "bench_ops", ways_of, seconds=0.2,
                    compile={"action": "store_true", "help": "torch.compile too"})
    torch = None

    def one(_, filter, folder):
        nonlocal torch
        report = report_of(args, ["--filter", filter, "--seconds", args.seconds], os.path.join(folder, "ours.json"))
        torch = torch or Peer(args, report["machine"]["threads"])
        return {**report, "torch": torch.version}, {
            text(row): ({"eager": row["seconds"]}, torch(row)) for row in report["rows"]
            if row["name"].removesuffix("_backward") in (*OPS, "adamw_step")}

    filters = {words or "all rows": words for words in args.filter.split(",")}
    table(args, in_turn(args, 1 if args.cpu_time else os.cpu_count(), filters, one))


if __name__ == "__main__":
    main()
