#!/usr/bin/env python3
"""The runs of bench_gpt_timeit in PyTorch, side by side.

    python bench/gpt_timeit/compare_torch.py build/release/bin/bench_gpt_timeit [--device cuda] [--sizes small,medium]
        [--computations ...] [--mixed False,True] [--batch N] [--context N] [--steps N] [--rounds N] [--threads N] [--cpu-time]
        [--ways ...] [--json FILE]

For each size, computation and precision, ours runs eager and compiled and PyTorch in four ways: document 004's model
written out (three products for queries, keys and values, softmax, norms and loss by hand) and the same model of
PyTorch's fused functions, each eager and with torch.compile. All in turn, with as many threads and in several rounds,
so that other work on the machine disturbs all; each has steps before the timed ones, and gradients add up on both
sides. Of each side the way counts that is the fastest by its median over the rounds; the ratio is the median over the
rounds of PyTorch's time over ours, above 1 where ours is faster. f32 rows use no TF32, True is bf16 over f32 parameters:
autocast in PyTorch, whose backward then runs within it as the document's does.
"""
import argparse, math, os, statistics, sys, tempfile, time

from compare_torch import GPTS, VOCABULARY, gpt
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from torch_peer import Peer, add_flags, answer, compared, finish, report_of

SIZES = {"small": "gpt-small-10k", "medium": "gpt-medium-10k", "tiny": "gpt-tiny-10k"}
GPTS.setdefault("gpt-tiny-10k", (32, 2, 2))
WAYS = ("document eager", "document compile", "fused eager", "fused compile")


def document_gpt(torch, name, context):
    """Document 004's model and loss, as it writes them."""
    nn = torch.nn
    width, blocks, heads = GPTS[name]

    class RmsNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return x / torch.sqrt(x.pow(2).sum(-1, keepdim=True) / width + 1e-5) * self.gain

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

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
            scores = (q @ k.transpose(-2, -1) / math.sqrt(c // heads)).masked_fill(self.mask[:, :, :t, :t], float("-inf"))
            exp = torch.exp(scores - scores.amax(-1, keepdim=True))
            y = (exp / exp.sum(-1, keepdim=True)) @ v
            return self.context_projection(y.transpose(1, 2).contiguous().view(b, t, c))

        def forward(self, x):
            x = x + self.attention(self.norm_1(x))
            h = self.fc(self.norm_2(x))
            return x + self.down_projection(0.5 * h * (1 + torch.erf(h / math.sqrt(2))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
            self.h, self.ln_f, self.head = nn.ModuleList(Block() for _ in range(blocks)), RmsNorm(), linear(width, VOCABULARY)
            for key, p in self.named_parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02 / (math.sqrt(2 * blocks) if "projection" in key else 1))

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
            for block in self.h:
                x = block(x)
            logits = self.head(self.ln_f(x))
            shifted = logits - logits.amax(-1, keepdim=True)
            at_target = shifted.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
            return (torch.log(torch.exp(shifted).sum(-1)) - at_target).mean()

    return Gpt()


class Runs:
    """The ways of one run: functions that time a step."""

    def __init__(self, torch, request, device):
        self.torch, self.device, self.request = torch, device, request
        self.now = time.process_time if request["cpu_time"] else time.perf_counter
        name, shape = SIZES[request["size"]], (request["batch"], request["context"])
        torch.manual_seed(20230310)
        self.tokens, self.targets = (torch.randint(VOCABULARY, shape, device=device) for _ in range(2))
        self.ways = {}
        for way in request["ways"]:  # eager and compiled share their parameters
            if way.split()[0] not in self.ways:
                make = document_gpt if way.startswith("document") else gpt
                self.ways[way.split()[0]] = make(torch, name, shape[1]).to(device)
        models, self.ways = self.ways, {}
        for way in request["ways"]:
            kind, how = way.split()
            self.ways[way] = models[kind] if how == "eager" else torch.compile(models[kind])
        self.dead = set()

    def wait(self):
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def step(self, way):
        """Seconds, of a step that ends synchronised."""
        f, computation = self.ways[way], self.request["computation"]
        start = self.now()
        loss = f(self.tokens, self.targets)
        if computation == "forward":
            del loss  # its tape is given back in time
        elif computation == "backward":
            self.wait()
            start = self.now()
            loss.backward()
        else:
            loss.backward()
        self.wait()
        return self.now() - start

    def measure(self):
        times = {}
        bf16 = self.request["mixed"] == "True"
        for way in self.ways:
            if way in self.dead:
                continue
            try:
                with self.torch.autocast(self.device.split(":")[0], self.torch.bfloat16, enabled=bf16):
                    for _ in range(self.request["warmup"]):
                        self.step(way)
                    times[way] = statistics.median(self.step(way) for _ in range(self.request["steps"]))
            except Exception as e:  # a way that PyTorch does not offer here
                self.dead.add(way)
                print(f"PyTorch, {way}: {type(e).__name__}: {str(e).splitlines()[0]}", file=sys.stderr)
        return times


def ours(args, request, path):
    """Mode -> seconds, and the report of the last run."""
    times = {}
    flags = {"sizes": "size", "computations": "computation", "warmups": "warmup", "mixed": "mixed", "steps": "steps",
             "batch": "batch", "context": "context"}
    for mode in ("eager", "compiled"):
        command = [args.program, "--mode", mode, "--device", args.device, "--matrix-only"]
        for flag, key in flags.items():
            command += [f"--{flag}", str(request[key])]
        if args.cpu_time:
            command += ["--cpu-time"]
        elif args.device == "cpu":
            command += ["--threads", str(args.threads)]
        report = report_of(command, path)
        times[mode] = report["rows"][0]["median_time"]
    return times, report


def words(text):
    return text.split(",")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?", help="bench_gpt_timeit")
    parser.add_argument("--sizes", type=words, default=["small", "medium"])
    parser.add_argument("--computations", type=words, default=["forward", "backward", "forward_backward"])
    parser.add_argument("--mixed", type=words, default=["False", "True"])
    parser.add_argument("--ways", type=words, default=list(WAYS), help=f"of PyTorch: {', '.join(WAYS)}")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timed ones: tracing takes some, and recording a graph")
    parser.add_argument("--steps", type=int, default=5, help="timed ones, for each way and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cpu-time", action="store_true", help="one thread each, by its processor time")
    add_flags(parser)
    args = parser.parse_args()
    if args.serve:
        import torch

        torch.set_num_threads(args.serve)
        torch.backends.cuda.matmul.allow_tf32 = False
        return answer(torch, lambda request: Runs(torch, request, args.device).measure)
    if not args.program:
        parser.error("name the program bench_gpt_timeit")
    for given, known, what in ((args.sizes, SIZES, "size"), (args.ways, WAYS, "way")):
        for word in given:
            if word not in known:
                parser.error(f"there is no {what} '{word}': {', '.join(known)}")

    if args.cpu_time:
        args.threads = 1
    torch, table = Peer(__file__, args.threads, "--device", args.device), []
    requests = [{"size": size, "computation": computation, "mixed": mixed, "batch": args.batch, "context": args.context,
                 "warmup": args.warmup, "steps": args.steps, "ways": args.ways, "cpu_time": args.cpu_time}
                for size in args.sizes for computation in args.computations for mixed in args.mixed]
    with tempfile.TemporaryDirectory() as folder:
        for request in requests:
            name = f"{request['size']}_{request['computation']}_mixed_{request['mixed']}"
            mine, theirs = [], []
            for number in range(args.rounds):
                print(f"{name}: round {number + 1} of {args.rounds}", file=sys.stderr)
                times, report = ours(args, request, os.path.join(folder, "ours.json"))
                mine.append(times)
                theirs.append(torch(request))
            if not table:
                machine = report["machine"]
                print(f"{machine['cpu']}, {report['device']}: {machine['backend']}, {machine['compiler']}; PyTorch {torch.version}, "
                      f"{args.threads} threads; batch {args.batch}, context {args.context}; {args.rounds} rounds of {args.steps} steps"
                      + ", processor time" * args.cpu_time)
                print(f"{'milliseconds':38} {'eager':>9} {'compiled':>9} " + " ".join(f"{way:>16}" for way in args.ways)
                      + f" {'ratio':>7} {'eager':>7}")
            row = compared(name, mine, theirs)
            eager = [t for way, t in row["torch_all"].items() if way.endswith("eager")]
            # what eager PyTorch, in its fastest form, takes for one of our eager steps
            row["eager_ratio"] = min(eager) / row["all"]["eager"] if eager else None
            shown = " ".join(f"{1e3 * row['torch_all'][w]:16.2f}" if w in row["torch_all"] else f"{'-':>16}" for w in args.ways)
            print(f"{name:38} {1e3 * row['all']['eager']:9.2f} {1e3 * row['all']['compiled']:9.2f} {shown} {row['ratio']:7.2f} "
                  + (f"{row['eager_ratio']:7.2f}" if eager else f"{'-':>7}"), flush=True)
            table.append(row)
    finish(args, report, torch.version, table, threads=args.threads, batch=args.batch, context=args.context, steps=args.steps,
           rounds=args.rounds, clock="processor" if args.cpu_time else "wall")


if __name__ == "__main__":
    main()
