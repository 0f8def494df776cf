"""Runs of `tapegrad train` on random tokens, and their step times, for compare_llmc.py and bench/dist/compare_ddp.py;
settings shared with compare_torch.py."""
import array, datetime, json, os, random, statistics, subprocess, sys

from results_file import cpu

# Blocks, heads, width, vocabulary, biases, dropout; sequences, tokens in each.
RUNS = {
    "nano": (4, 4, 128, 65, False, 0.0, 12, 64),  # nanoGPT's settings for a CPU
    "shakespeare_char": (6, 6, 384, 65, False, 0.0, 64, 256),
    "shakespeare_char_dropout": (6, 6, 384, 65, False, 0.2, 64, 256),
    "gpt2_4x64": (12, 12, 768, 50257, True, 0.0, 4, 64),  # 124 million parameters
    "gpt2_16x128": (12, 12, 768, 50257, True, 0.0, 16, 128),
}
# llm.c's batch on each GPU, and its padded vocabulary
FOR_A_GPU = {"gpt2_64x1024": (12, 12, 768, 50304, True, 0.0, 64, 1024)}
OF_RANKS = {"6x384_8x128": (6, 6, 384, 65, False, 0.0, 8, 128)}  # 10.7 million parameters; a rank's sequences
RATE, BETAS, EPS, DECAY, CLIP = 1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0


def settings_of(args, run):
    """Flags of a run, for `tapegrad train` and bench_step."""
    blocks, heads, width, vocabulary, bias, dropout, batch, context = {**RUNS, **FOR_A_GPU, **OF_RANKS}[run]
    return {"layers": blocks, "heads": heads, "width": width, "vocab-size": vocabulary, "context": context,
            "bias": str(bias).lower(), "dropout": dropout, "batch": batch, "lr": RATE, "beta1": BETAS[0],
            "beta2": BETAS[1],
            "eps": EPS, "weight-decay": DECAY, "clip-norm": CLIP, "dtype": args.dtype,
            "matmul-precision": args.matmul_precision}


def step_of(torch, args, model, loss, adamw):
    """A function that times a step of PyTorch: loss(), gradients, clipping, AdamW ("fused" or "foreach")."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() == 2], "weight_decay": DECAY},
                                   {"params": [p for p in parameters if p.dim() != 2], "weight_decay": 0.0}],
                                  lr=RATE, betas=BETAS, eps=EPS, **{adamw: True})

    def step():
        start = args.now()
        with torch.autocast(args.device.split(":")[0], torch.bfloat16, enabled=args.dtype == "bf16"):
            of_step = loss()
        of_step.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        args.wait()
        return args.now() - start

    return step


def train(args, folder, flags, modes=("eager", "compiled"), launch=(), copies=1):
    """({mode: log} of `tapegrad train` with these flags, a log being a list of steps; output of the last run).
    `launch` precedes the command. Of concurrent copies the first is reported."""
    logs, out = {}, os.path.join(folder, "out")
    for mode in modes:
        flags = {"threads": args.threads, **flags, "device": args.device, "max-steps": args.warmup + args.steps,
                 "warmup": 0, "schedule": "constant", "val-fraction": 0, "eval-every": 0, "dtype": args.dtype,
                 "compile": str(mode == "compiled").lower()}
        command = [*launch, args.program, "train", "--overwrite", "--no-save",
                   *(w for k, v in flags.items() for w in (f"--{k}", str(v)))]
        runs = [subprocess.Popen([*command, "--out", f"{out}{k}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
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
    settings = settings_of(args, run)
    vocabulary = settings["vocab-size"]
    data = os.path.join(folder, f"{vocabulary}.bin")
    if not os.path.exists(data):
        draw = random.Random(1)
        with open(data, "wb") as f:
            array.array("H", (draw.randrange(vocabulary) for _ in range(100_000))).tofile(f)
    return {"data": data, **settings}


def mpirun(ranks):
    """The Open MPI launch command for `ranks` ranks: unbound, allowing root and more ranks than cpus."""
    return ["mpirun", *["--allow-run-as-root"] * (os.geteuid() == 0), *["--oversubscribe"] * (ranks > os.cpu_count()),
            "--bind-to", "none", "-n", str(ranks)]


def report_of(args, header, **peer):
    """The origin keys of our programs' JSON files."""
    backend = next(line for line in header.splitlines() if line.startswith("device")).removeprefix("device").strip()
    built = subprocess.run([args.program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return {"machine": {"cpu": cpu(), "cpus": os.cpu_count(), "backend": backend, "compiler": built}, "clock": "wall",
            "date": datetime.date.today().isoformat(), "device": args.device, **peer}
