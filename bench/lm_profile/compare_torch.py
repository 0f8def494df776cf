#!/usr/bin/env python3
"""Training steps of bench_lm_profile, compared with PyTorch: document 003's model op by op, and of fused functions.

A step is forward, loss, backward and AdamW on random tokens. Ours is the profiled step, in its three forms.
"""
import math, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
import torch_gpt
from torch_peer import Peer, in_turn, median_of_steps, numbers, one_of, parse, report_of, table, words

SIZES = {"small": (12, 12, 768, 3072), "tiny": (2, 4, 32, 96)}  # blocks, heads, width, hidden
WAYS = ("document eager", "document compile", "fused eager", "fused compile")


def gpt(torch, kind, size, context):
    nn, (blocks, heads, width, hidden) = torch.nn, SIZES[size]

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = Norm(), Norm()
            self.q, self.k, self.v, self.proj, self.gate, self.up, self.down_proj = (
                nn.Linear(*sizes, bias=False) for sizes in
                4 * [(width, width)] + 2 * [(width, hidden)] + [(hidden, width)])

        def forward(self, x, cos, sin):
            def rotated(x):
                a, b = x[..., ::2], x[..., 1::2]
                return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

            h, at = self.norm_1(x), torch.arange(x.shape[1], device=x.device)
            q, k, v = (f(h).unflatten(-1, (heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
            scores = rotated(q) @ rotated(k).transpose(-2, -1) / math.sqrt(width // heads)
            scores = torch.where(at[:, None] >= at, scores, float("-inf"))
            exp = torch.exp(scores - scores.amax(-1, keepdim=True))
            x = x + self.proj((exp / exp.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(-2))
            h = self.norm_2(x)
            gate = self.gate(h)
            return x + self.down_proj(gate * torch.sigmoid(gate) * self.up(h))

    next_token = lambda logits, ids: nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return torch_gpt.gpt(torch, blocks, heads, width, 10_000, context, rms=True, tied=False, hidden=hidden,
                         loss=next_token, **({"norm": Norm, "block": Block} if kind == "document" else {}))


def ways_of(torch, context, args):
    torch.manual_seed(1)
    ids = torch.randint(10_000, (args.batch, context), device=args.device)

    def measured(kind, mode):
        model = gpt(torch, kind, args.size, context).to(args.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        function = torch.compile(model) if mode == "compile" else model

        def step():
            start = args.now()
            function(ids, ids).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            args.wait()
            return args.now() - start

        return lambda: median_of_steps(args, step)

    return {way: measured(*way.split()) for way in args.ways}


def main():
    args, _ = parse(__doc__, "bench_lm_profile", ways_of, steps=(3, 3), size=one_of(*SIZES), contexts=numbers(128),
                    batch=4, ways=words(WAYS))
    peer = Peer(args)

    def one(title, context, folder):
        flags = ["--size", args.size, "--batch", args.batch, "--contexts", context, "--warmup", args.warmup]
        report = report_of(args, flags, os.path.join(folder, "ours.json"))
        return {**report, "torch": peer.version}, {
            title: ({run["form"]: run["step"]["seconds"] for run in report["runs"]}, peer(context))}

    requests = {f"{args.size} train, {args.batch} x {context} tokens": context for context in args.contexts}
    table(args, in_turn(args, args.threads, requests, one), threads=args.threads, batch=args.batch, steps=args.steps)


if __name__ == "__main__":
    main()
