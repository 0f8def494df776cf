#!/usr/bin/env python3
"""The cells of bench_fragmented, compared with PyTorch.

PyTorch's layer is the document's: GEMMs of all fragments in training, a copy of the selected matrix per row in
inference. The rows "inference forward beside linear" compare our hard selection with PyTorch's linear layer.
"""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from torch_peer import UNKNOWN, Peer, by_row, in_modes, in_turn, numbers, parse, table, words

MODES = ("linear", "train", "inference")
OURS = {("separate", "eager"): "eager", ("folded", "eager"): "folded", ("separate", "compiled"): "compiled",
        ("folded", "compiled"): "folded, compiled"}


def layer_of(torch, size, fragments):
    """The document's module, without biases."""
    nn, width = torch.nn, size // fragments

    class Fragmented(nn.Module):
        def __init__(self):
            super().__init__()
            self.selector = nn.Parameter(torch.randn(fragments, width) / width**0.5)
            self.experts = nn.Parameter(torch.randn(fragments, width, size) / width**0.5)
            self.compressor = nn.Linear(size, size // 32, bias=False)
            self.expander = nn.Linear(size // 32, size, bias=False)
            self.register_buffer("place", torch.arange(size) // width)

        def forward(self, x):
            parts = x.view(-1, fragments, width)
            p = torch.einsum("bfi,fi->bf", parts, self.selector).softmax(-1)
            if self.training:
                selected = torch.einsum("bfo,bf->bo", torch.einsum("bfi,fio->bfo", parts, self.experts), p)
                rest = x * (1 - p[:, self.place])
            else:
                k = p.argmax(-1)
                rows = torch.arange(len(x), device=x.device)
                selected = torch.bmm(parts[rows, k].unsqueeze(1), self.experts[k]).squeeze(1)
                rest = x.masked_fill(self.place == k[:, None], 0)
            return selected + self.expander(self.compressor(rest))

    return Fragmented()


def runner(torch, args, request, mode, fused=False, compiled_layer=False, compiled_update=False):
    """A function that measures the means of (forward, step) in seconds, for a layer made at the first call."""
    size, batch, fragments = request
    made = []

    def make():
        x, target = (torch.randn(batch, size, device=args.device) for _ in range(2))
        layer = torch.nn.Linear(size, size) if mode == "linear" else layer_of(torch, size, fragments)
        layer = layer.to(args.device).train(mode != "inference")
        adam = torch.optim.Adam(layer.parameters(), lr=1e-3, **({"fused": True} if fused else {"foreach": True}))
        return (torch.compile(layer) if compiled_layer else layer, x, target, adam,
                torch.compile(adam.step) if compiled_update else adam.step)

    def run():
        layer, x, target, adam, update = made[0]
        start = args.now()
        y = layer(x)
        args.wait()
        forward = args.now() - start
        loss = torch.nn.functional.mse_loss(y, target)
        start = args.now()
        adam.zero_grad(set_to_none=True)
        loss.backward()
        update()
        args.wait()
        return forward, forward + args.now() - start

    def measure():
        if not made:
            made.append(make())
        times = [run() for _ in range(args.warmup + args.steps)][args.warmup:]
        return [sum(part) / len(times) for part in zip(*times)]

    return measure


WAYS = {"eager foreach": {}, "eager fused": {"fused": True}, "compile fused": {"fused": True, "compiled_layer": True},
        "compile foreach": {"compiled_layer": True, "compiled_update": True}}


def ways_of(torch, request, args):
    """The ways of a group of cells: {"mode, forward or step|way": function that measures seconds}."""
    torch.manual_seed(0)
    found = {}
    for mode in MODES:
        for way in args.ways:
            measure, last = runner(torch, args, request, mode, **WAYS[way]), []

            def forward(measure=measure, last=last):
                last[:] = measure()  # and the step
                return last[0]
            found[f"{mode} forward|{way}"] = forward
            found[f"{mode} step|{way}"] = lambda last=last: last[1]
    return found


def of_ours(cells):
    """{"mode, forward or step": {way: seconds}}"""
    found = {}
    for c in cells:
        way = OURS[c["step"], c["run"]]
        found.setdefault(f"{c['mode']} forward", {})[way] = 1e-3 * c["forward_ms"]
        found.setdefault(f"{c['mode']} step", {})[way] = 1e-3 * (c["forward_ms"] + c["backward_ms"])
    return found


def main():
    args, error = parse(__doc__, "bench_fragmented", ways_of, steps=(3, 10), sizes=numbers(2048),
                        batches=numbers(1, 16), fragments=numbers(2, 8), ways=words(WAYS))
    if min(args.warmup, args.steps, args.rounds, *args.batches, *args.fragments) < 1:
        error("--warmup, --steps, --rounds, --batches and --fragments must be 1 or more")
    for size, fragments in ((s, f) for s in args.sizes for f in args.fragments):
        if size % fragments:
            error(f"--sizes {size} cannot be split into --fragments {fragments}: each size must be a multiple of each")
    peer = Peer(args)

    def one(title, request, folder):
        size, batch, fragments = request
        flags = ["--sizes", size, "--batches", batch, "--fragments", fragments, "--warmup", args.warmup, "--steps",
                 args.steps]
        reports = [UNKNOWN | {"cells": []}, *in_modes(args, title, flags, folder, "--run").values()]
        mine, theirs, rows = of_ours(c for r in reports for c in r["cells"]), by_row(peer(request)), {}
        for mode in MODES if fragments == args.fragments[0] else MODES[1:]:
            name = f"{size} {batch} {mode}" + f" {fragments}" * (mode != "linear")
            for part in ("forward", "step"):
                rows[f"{name} {part}"] = (mine.get(f"{mode} {part}", {}), theirs.get(f"{mode} {part}", {}))
        rows[f"{name} forward beside linear"] = (mine.get("inference forward", {}), theirs.get("linear forward", {}))
        return {**reports[-1], "torch": peer.version}, rows

    requests = {f"{s}, batch {b}, {f} fragments": (s, b, f) for s in args.sizes for b in args.batches
                for f in args.fragments}
    table(args, in_turn(args, args.threads, requests, one), threads=args.threads, steps=args.steps, dtype="f32")


if __name__ == "__main__":
    main()
