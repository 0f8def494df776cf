#!/usr/bin/env python3
"""The document's ids of bench_training, compared with PyTorch, on the CPU with one thread and with all cpus.

AdamW is fused or foreach, whichever is faster. LoRA's A and B require gradients on both sides.
"""
import math, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from torch_peer import Peer, both_modes, parse, table, timer

# x, rank: document 000's LoRA layers are square, with alpha = 2 rank
LORA = {
    **{f"lora_forward/forward/{size}_{n}x{n}_r{rank}": ((4, 16, n), rank)
       for size, n, rank in (("small", 512, 8), ("medium", 1024, 8), ("large", 2048, 8), ("small", 512, 16))},
    **{f"lora_rank_scaling/forward/rank_{rank}": ((2, 32, 1024), rank) for rank in (4, 8, 16, 32, 64)},
    **{f"lazy_vs_eager_lora/{way}": ((4, 16, 512), 8) for way in ("eager_forward", "lazy_forward_sync")}}
LAYERS = ("softmax_stable", "layer_norm", "rms_norm")
GRADIENT, ADAMW, STEP = ("gradient_computation/forward_backward", "optimizer_step/adamw_step",
                         "full_training_step/complete_iteration")
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


def main():
    args, error = parse(__doc__, "bench_training", lambda torch, name, args: {
        f"{way}, {args.serve} thread(s)": timer(args, make, 0.002)
        for way, make in ways_of(torch, name, args.device).items()}, rounds=5, seconds=0.2)
    ids = {name: name for name in IDS if any(words in name for words in args.filter.split(","))}
    if not ids:
        error(f"no id has '{args.filter}' in it")
    flags = lambda name: ["--filter", name, "--samples", 20, "--warmup", args.seconds / 3, "--target", args.seconds]
    seconds = lambda report, name: next(r["median"]["estimate"] for r in report["rows"] if r["id"] == name)
    threads = [1] if args.cpu_time or args.device != "cpu" else sorted({1, os.cpu_count()})
    table(args, both_modes(args, ids, flags, seconds, [Peer(args, n) for n in threads]))


if __name__ == "__main__":
    main()
