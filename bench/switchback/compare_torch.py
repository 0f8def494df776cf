#!/usr/bin/env python3
"""The ops and steps of bench_switchback, compared with PyTorch.

PyTorch's int8 GEMMs are torch._int_mm followed by the scales, its quantising consists of its ops, and SwitchBack is a
torch.autograd.Function of these. The rows "SwitchBack beside linear" compare our fastest SwitchBack with PyTorch's
fastest full-precision linear layer.
"""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from torch_peer import Failed, Peer, by_row, in_turn, missing, numbers, one_of, parse, report_of, table, words

OPS = ("standard_fwd", "standard_gw", "standard_gx", "rowwise_fwd", "rowwise_bwd", "global_fwd", "global_bwd",
       "x_quantize_rowwise",
       "g_quantize_rowwise", "w_quantize_rowwise", "w_quantize_colwise_transpose", "w_quantize_global",
       "w_quantize_global_transpose",
       "cast_x", "cast_g", "cast_w")
LAYERS = ("linear", "global", "vector_wise", "memory_efficient")
BESIDE = "SwitchBack beside linear"


def by_rows(torch, x):
    absmax = x.abs().amax(-1).float()
    return torch.round(127 * (x.float() / absmax[:, None])).to(torch.int8), absmax


def by_all(torch, x):
    absmax = x.abs().max().float().reshape(1)
    return torch.round(127 * (x.float() / absmax)).to(torch.int8), absmax


def transposed(of):
    """Quantizes the transpose into contiguous rows."""
    def quantise(torch, w):
        codes, absmax = of(torch, w.t())
        return codes.contiguous(), absmax
    return quantise


def product(torch, x, w, dtype):
    """The GEMM of quantized values and their absmax: x (M, K), w (N, K)."""
    sums = torch._int_mm(x[0], w[0].t()).float()
    return (w[1] * (x[1][:, None] * (sums * (1 / 127**2)))).to(dtype)


def switchback(torch, mode):
    of_weight = by_rows if mode == "vector_wise" else by_all

    class SwitchBack(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            codes, weight = by_rows(torch, x), of_weight(torch, w)
            ctx.save_for_backward(*((*codes, *weight) if mode == "memory_efficient" else (x, w)))
            return product(torch, codes, weight, x.dtype)

        @staticmethod
        def backward(ctx, g):
            if mode == "memory_efficient":
                x_codes, x_absmax, w_codes, w_absmax = ctx.saved_tensors
                x = (x_codes.float() * (x_absmax[:, None] / 127)).to(g.dtype)
                weight = (w_codes.t().contiguous(), w_absmax)
            else:
                x, w = ctx.saved_tensors
                weight = transposed(of_weight)(torch, w)
            return product(torch, by_rows(torch, g), weight, g.dtype), g.t() @ x

    return SwitchBack.apply


def parts_of(args):
    return [part for part in (*OPS, *LAYERS, BESIDE) if any(word in part for word in args.only.split(","))]


def ways_of(torch, request, args):
    """The ways of a row: {"op|way": function that measures the seconds of a call}."""
    dim_in, dim_out, batch = request
    torch.manual_seed(0)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    draw = lambda *shape: torch.randn(*shape, device=args.device, dtype=dtype)
    x, g, w = draw(batch, dim_in), draw(batch, dim_out), draw(dim_out, dim_in)
    x_rows, g_rows, w_rows, w_all = by_rows(torch, x), by_rows(torch, g), by_rows(torch, w), by_all(torch, w)
    columns, all_transposed = transposed(by_rows), transposed(by_all)
    w_columns, w_all_transposed = columns(torch, w), all_transposed(torch, w)
    ops = {"standard_fwd": (torch.nn.functional.linear, x, w), "standard_gw": (lambda g, x: g.t() @ x, g, x),
           "standard_gx": (lambda g, w: g @ w, g, w)}
    for op, a, b in (("rowwise_fwd", x_rows, w_rows), ("rowwise_bwd", g_rows, w_columns), ("global_fwd", x_rows, w_all),
                     ("global_bwd", g_rows, w_all_transposed)):
        ops[op] = (lambda a, b: product(torch, a, b, dtype), a, b)
    for op, f, t in (("x_quantize_rowwise", by_rows, x), ("g_quantize_rowwise", by_rows, g),
                     ("w_quantize_rowwise", by_rows, w),
                     ("w_quantize_colwise_transpose", columns, w), ("w_quantize_global", by_all, w),
                     ("w_quantize_global_transpose", all_transposed, w)):
        ops[op] = (lambda t, f=f: f(torch, t), t)
    for op, t in (("cast_x", x), ("cast_g", g), ("cast_w", w)):
        ops[op] = (lambda t: t.to(torch.int8), t)
    steps = {"linear": torch.nn.functional.linear, **{mode: switchback(torch, mode) for mode in LAYERS[1:]}}

    def measured(run):
        for _ in range(max(3, args.repeat // 2)):
            run()
        args.wait()
        start = args.now()
        for _ in range(args.repeat):
            run()
        args.wait()
        return (args.now() - start) / args.repeat

    def step(f):
        xs, ws = x.detach().requires_grad_(), w.detach().requires_grad_()
        return lambda: torch.autograd.grad(f(xs, ws), (xs, ws), g)

    ways = {}
    for way in args.ways:
        wrap = torch.compile if way == "compile" else lambda f: f
        for op, (f, *inputs) in ops.items():
            ways[f"{op}|{way}"] = lambda f=wrap(f), inputs=inputs: measured(lambda: f(*inputs))
        for layer, f in steps.items():
            ways[f"{layer}|{way}"] = lambda run=step(wrap(f)): measured(run)
    parts = parts_of(args)
    return {name: f for name, f in ways.items()
            if (op := name.split("|")[0]) in parts or op == "linear" and BESIDE in parts}


def of_ours(row):
    """{name: {mode: seconds}} of a row of bench_switchback."""
    found = {op: {"eager": 1e-3 * row[op]} for op in OPS}
    for t in row["layers"]:
        found.setdefault(t["way"], {})[t["mode"]] = t["seconds"]
    codes = [found[layer] for layer in LAYERS[1:] if layer in found]
    return found | {BESIDE: {mode: min(times[mode] for times in codes) for times in codes[:1] for mode in times}}


def of_torch(times):
    found = by_row(times)
    return found | ({BESIDE: {f"linear {way}": s for way, s in found["linear"].items()}} if "linear" in found else {})


def main():
    args, error = parse(__doc__, "bench_switchback", ways_of, dims=numbers(1024, 2048), batch=numbers(1024, 4096),
                        switch=words(("False", "True"), ["False"]), dtype=one_of("bf16", "f32"),
                        only={"default": "", "help": "of the ops and layers those with one of these in their name"},
                        ways=words(("eager", "compile")), repeat=4)
    if not (parts := parts_of(args)):
        error(f"no op and no layer has '{args.only}' in it: {', '.join((*OPS, *LAYERS, BESIDE))}")
    requests = {}
    for dim in args.dims:
        for batch in args.batch:
            for switch in args.switch:
                sizes = (dim, 4 * dim)[:: -1 if switch == "True" else 1]
                requests[f"{sizes[0]}->{sizes[1]} {batch}"] = ((*sizes, batch), switch)
    peer = Peer(args)

    def one(name, request, folder):
        (*sizes, batch), switch = request
        flags = ["--dims", min(sizes), "--wm", 4, "--batch", batch, "--switch", switch, "--dtype", args.dtype,
                 "--repeat", args.repeat]
        path = os.path.join(folder, "ours.json")
        try:
            report = report_of(args, flags, path)
        except Failed as e:
            missing(name, "with the layer's steps", str(e))
            report = report_of(args, [*flags, "--parts-only"], path)
        row = report["grid"][0]
        assert [row["dim_in"], row["dim_out"], row["batch_size"]] == [*sizes, batch], (name, row)
        mine, theirs = of_ours(row), of_torch(peer(request[0]))
        return {**report, "torch": peer.version}, {
            f"{name} {'step, ' * (part in LAYERS)}{part}": (mine.get(part, {}), theirs.get(part, {}))
            for part in parts}

    table(args, in_turn(args, args.threads, requests, one), threads=args.threads, repeat=args.repeat, dtype=args.dtype)


if __name__ == "__main__":
    main()
