#!/usr/bin/env python3
"""The runs of bench_gpt_timeit, compared with PyTorch.

PyTorch has document 004's model written out (separate q, k, v GEMMs; softmax, norms and loss by hand) and the same
model of fused functions. Gradients accumulate on both sides. True is bf16 over f32 parameters: autocast in PyTorch,
whose backward then runs inside it, as in the document.
"""
import functools, math, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
import torch_gpt
from torch_peer import PRECISIONS, Peer, both_modes, median_of_steps, one_of, parse, table, words

# Width, blocks, heads; vocabulary 10 000, RMSNorm, GELU, learned positions, no biases.
SIZES = {"small": (768, 12, 12), "medium": (1024, 24, 16), "tiny": (32, 2, 2)}
VOCABULARY = 10_000
WAYS = ("document eager", "document compile", "fused eager", "fused compile")


def gpt(torch, kind, size, context):
    """Document 004's model and loss, as written there or from PyTorch's fused functions."""
    nn = torch.nn
    width, blocks, heads = SIZES[size]
    make = functools.partial(torch_gpt.gpt, torch, blocks, heads, width, VOCABULARY, context, tied=False, scaled=True)
    if kind == "fused":
        return make(rms=True)
    linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)

    class RmsNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return x / torch.sqrt(x.pow(2).sum(-1, keepdim=True) / width + 1e-5) * self.gain

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = RmsNorm(), RmsNorm()
            self.q, self.k, self.v, self.context_projection = (linear(width, width) for _ in range(4))
            self.fc, self.down_projection = linear(width, 4 * width), linear(4 * width, width)
            self.register_buffer("mask", torch.ones(context, context).triu(1).bool().view(1, 1, context, context))

        def attention(self, x):
            b, t, c = x.shape
            q, k, v = (f(x).view(b, t, heads, c // heads).transpose(1, 2) for f in (self.q, self.k, self.v))
            scores = (q @ k.transpose(-2, -1) / math.sqrt(c // heads)).masked_fill(
                self.mask[:, :, :t, :t], float("-inf"))
            exp = torch.exp(scores - scores.amax(-1, keepdim=True))
            y = (exp / exp.sum(-1, keepdim=True)) @ v
            return self.context_projection(y.transpose(1, 2).contiguous().view(b, t, c))

        def forward(self, x):
            x = x + self.attention(self.norm_1(x))
            h = self.fc(self.norm_2(x))
            return x + self.down_projection(0.5 * h * (1 + torch.erf(h / math.sqrt(2))))

    def loss(logits, targets):
        shifted = logits - logits.amax(-1, keepdim=True)
        at_target = shifted.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return (torch.log(torch.exp(shifted).sum(-1)) - at_target).mean()

    return make(norm=RmsNorm, block=Block, loss=loss)


def ways_of(torch, request, args):
    """The ways of a run: functions that measure the median seconds of synchronised steps."""
    size, computation, mixed = request
    torch.manual_seed(20230310)
    tokens, targets = (torch.randint(VOCABULARY, (args.batch, args.context), device=args.device) for _ in range(2))
    models = {kind: gpt(torch, kind, size, args.context).to(args.device)  # eager and compiled share their parameters
              for kind in {way.split()[0] for way in args.ways}}

    def step(f):
        start = args.now()
        loss = f(tokens, targets)
        if computation == "forward":
            del loss  # frees its tape within the timed step
        elif computation == "backward":
            args.wait()
            start = args.now()
            loss.backward()
        else:
            loss.backward()
        args.wait()
        return args.now() - start

    def measured(f):
        with torch.autocast(args.device.split(":")[0], torch.bfloat16, enabled=mixed == "True"):
            return median_of_steps(args, lambda: step(f))

    functions = {way: models[way.split()[0]] if way.endswith("eager") else torch.compile(models[way.split()[0]])
                 for way in args.ways}
    return {way: (lambda f=f: measured(f)) for way, f in functions.items()}


def main():
    args, _ = parse(__doc__, "bench_gpt_timeit", ways_of, steps=(3, 5), sizes=words(SIZES, ("small", "medium")),
                    computations=words(("forward", "backward", "forward_backward")), mixed=words(("False", "True")),
                    ways=words(WAYS), matmul_precision=one_of(*PRECISIONS), batch=16, context=128)
    requests = {f"{size}_{computation}_mixed_{mixed}": (size, computation, mixed)
                for mixed in args.mixed for size in args.sizes for computation in args.computations}
    shared = ["--matrix-only", "--warmups", args.warmup, "--steps", args.steps, "--batch", args.batch, "--context",
              args.context, "--matmul-precision", args.matmul_precision]
    flags = lambda request: [word for pair in zip(("--sizes", "--computations", "--mixed"), request)
                             for word in pair] + shared
    table(args, both_modes(args, requests, flags, lambda report, _: report["rows"][0]["median_time"],
                           [Peer(args)]),
          threads=args.threads, matmul_precision=args.matmul_precision, batch=args.batch, context=args.context,
          steps=args.steps)


if __name__ == "__main__":
    main()
