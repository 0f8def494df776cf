#!/usr/bin/env python3
"""Whole training steps of GPTs: `tapegrad train` beside PyTorch.

    python bench/gpt_training/compare_torch.py build/release/bin/tapegrad [--runs nano,shakespeare_char,...] [--dtype bf16]
        [--matmul-precision medium] [--steps N] [--warmup N] [--rounds N] [--threads N] [--ways ...] [--json FILE]

A step is forward, backward, the norm of all gradients with clipping at 1, and AdamW. Ours is what the command line trains, eager
and with --compile, on random tokens; its time is that of its log, which reads the batch too. PyTorch's model is one of its fused
functions (LayerNorm, one product for queries, keys and values, scaled_dot_product_attention, GELU), eager and with
torch.compile, with AdamW fused and foreach. All run in turn, with as many threads and in several rounds. Of each side the way
counts that is the fastest by its median over the rounds; the ratio is the median over the rounds of PyTorch's time over
ours, above 1 where ours is faster. --dtype bf16 is bf16 over f32 parameters, autocast in PyTorch.
"""
import array, datetime, json, os, platform, random, statistics, subprocess, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from torch_peer import PRECISIONS, Peer, parse, rounds_of, serve, table

# Blocks, heads, width, vocabulary, biases, dropout; sequences and tokens of each.
RUNS = {
    "nano": (4, 4, 128, 65, False, 0.0, 12, 64),  # nanoGPT's settings for a CPU
    "shakespeare_char": (6, 6, 384, 65, False, 0.0, 64, 256),
    "shakespeare_char_dropout": (6, 6, 384, 65, False, 0.2, 64, 256),
    "gpt2_4x64": (12, 12, 768, 50257, True, 0.0, 4, 64),  # 124 million parameters
    "gpt2_16x128": (12, 12, 768, 50257, True, 0.0, 16, 128),
}
WAYS = ("eager fused", "eager foreach", "compile fused")  # of PyTorch: its model and its AdamW
RATE, BETAS, EPS, DECAY, CLIP = 1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0


def gpt(torch, run):
    nn, F = torch.nn, torch.nn.functional
    blocks, heads, width, vocabulary, bias, dropout, _, context = RUNS[run]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = (nn.LayerNorm(width, bias=bias) for _ in range(2))
            self.qkv, self.proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
            self.fc, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in self.qkv(self.norm_1(x)).split(c, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # ours drops no attention weights
            x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, t, c)), dropout)
            return x + F.dropout(self.down(F.gelu(self.fc(self.norm_2(x)))), dropout)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
            self.h = nn.ModuleList(Block() for _ in range(blocks))
            self.ln_f = nn.LayerNorm(width, bias=bias)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)

        def forward(self, tokens, targets):
            x = F.dropout(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]], dropout)
            for block in self.h:
                x = block(x)
            logits = F.linear(self.ln_f(x), self.wte.weight)  # the head's weight is the token table
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return Gpt()


def ways_of(torch, run, args):
    """The ways of one run: functions that measure steps, the median of their seconds. Each ends synchronised."""
    torch.manual_seed(1)
    vocabulary, batch, context = RUNS[run][3], *RUNS[run][6:]
    tokens, targets = (torch.randint(vocabulary, (batch, context), device=args.device) for _ in range(2))
    model = gpt(torch, run).to(args.device)
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": DECAY},
              {"params": [p for p in parameters if p.dim() != 2], "weight_decay": 0.0}]
    compiled = torch.compile(model) if any(way.startswith("compile") for way in args.ways) else None

    def measured(way):
        function = compiled if way.startswith("compile") else model
        adamw = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS, **{way.split()[1]: True})

        def step():
            start = args.now()
            with torch.autocast(args.device.split(":")[0], torch.bfloat16, enabled=args.dtype == "bf16"):
                loss = function(tokens, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP, foreach=True)
            adamw.step()
            adamw.zero_grad(set_to_none=True)
            args.wait()
            return args.now() - start

        for _ in range(args.warmup):
            step()
        return statistics.median(step() for _ in range(args.steps))

    return {way: (lambda way=way: measured(way)) for way in args.ways}


def train(args, folder, flags, modes=("eager", "compiled"), launch=(), copies=1):
    """({mode: log} of `tapegrad train` with these flags, its log a list of steps; what the last run printed). The words of `launch`
    come before the command. Of copies that run at once the first is reported."""
    logs, out = {}, os.path.join(folder, "out")
    for mode in modes:
        flags = {"threads": args.threads, **flags, "device": args.device, "max-steps": args.warmup + args.steps,
                 "warmup": 0, "schedule": "constant", "val-fraction": 0, "eval-every": 0, "checkpoint-every": 0,
                 "dtype": args.dtype, "compile": str(mode == "compiled").lower()}
        command = [*launch, args.program, "train", "--overwrite", *(w for k, v in flags.items() for w in (f"--{k}", str(v)))]
        runs = [subprocess.Popen([*command, "--out", f"{out}{k}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for k in range(copies)]
        printed = [run.communicate() for run in runs]
        for run, (_, error) in zip(runs, printed):
            if run.returncode:
                sys.exit(error)
        with open(os.path.join(out + "0", "log.jsonl")) as f:
            logs[mode] = [json.loads(line) for line in f]
    return logs, printed[0][0]


def seconds_of(logs, warmup):
    return {mode: statistics.median(step["ms"] for step in steps[warmup:]) / 1e3 for mode, steps in logs.items()}


def flags_of(args, run, folder):
    """The flags of `tapegrad train` for a run, with random tokens in a file of the folder."""
    blocks, heads, width, vocabulary, bias, dropout, batch, context = RUNS[run]
    data = os.path.join(folder, f"{vocabulary}.bin")
    if not os.path.exists(data):
        draw = random.Random(1)
        with open(data, "wb") as f:
            array.array("H", (draw.randrange(vocabulary) for _ in range(100_000))).tofile(f)
    return {"data": data, "layers": blocks, "heads": heads, "width": width, "vocab-size": vocabulary, "context": context,
            "bias": str(bias).lower(), "dropout": dropout, "batch": batch, "lr": RATE, "beta1": BETAS[0], "beta2": BETAS[1],
            "eps": EPS, "weight-decay": DECAY, "clip-norm": CLIP, "matmul-precision": args.matmul_precision}


def ours(args, run, folder):
    """{mode: seconds} of a step, and what the last run printed."""
    logs, printed = train(args, folder, flags_of(args, run, folder))
    return seconds_of(logs, args.warmup), printed


def declare(parser):
    words = lambda text: text.split(",")
    parser.add_argument("--runs", type=words, default=list(RUNS))
    parser.add_argument("--ways", type=words, default=list(WAYS), help=f"of PyTorch: {', '.join(WAYS)}")
    parser.add_argument("--dtype", default="f32", choices=("f32", "bf16"))
    parser.add_argument("--matmul-precision", default="highest", choices=PRECISIONS)
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timed ones: tracing takes some")
    parser.add_argument("--steps", type=int, default=10, help="timed ones, for each way and round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())


def report_of(args, header, **peer):
    """The keys of our programs' JSON files that say where figures come from."""
    backend = next(line for line in header.splitlines() if line.startswith("device")).removeprefix("device").strip()
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    built = subprocess.run([args.program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return {"machine": {"cpu": cpu, "cpus": os.cpu_count(), "backend": backend, "compiler": built}, "clock": "wall",
            "date": datetime.date.today().isoformat(), "device": args.device, **peer}


def main():
    args, error = parse(__doc__, "tapegrad", declare, rounds=3)
    if args.cpu_time:
        error("tapegrad train measures wall time alone: leave --cpu-time out")
    if args.serve:
        return serve(args, lambda torch, run: ways_of(torch, run, args))
    for given, known, what in ((args.runs, RUNS, "run"), (args.ways, WAYS, "way")):
        for word in given:
            if word not in known:
                error(f"there is no {what} '{word}': {', '.join(known)}")

    peer = Peer(args.threads)

    def measured():
        with tempfile.TemporaryDirectory() as folder:
            for run in args.runs:
                rounds, shares = rounds_of(args, args.threads, run, lambda: (ours(args, run, folder), peer(run)))
                yield (run, [mine for (mine, _), _ in rounds], [theirs for _, theirs in rounds], shares,
                       report_of(args, rounds[-1][0][1], torch=peer.version))

    table(args, measured(), threads=args.threads, steps=args.steps, dtype=args.dtype, matmul_precision=args.matmul_precision)


if __name__ == "__main__":
    main()
