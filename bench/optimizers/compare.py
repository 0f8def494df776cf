"""AdamW, SGD and Muon on tiny Shakespeare: validation loss by steps, and what a step costs.

    python bench/optimizers/compare.py build/release/bin/tapegrad input.txt --out runs --json result.json

Runs `tapegrad train --preset shakespeare-cpu` for each seed: AdamW with the preset's rate, and with --adamw-lr if it is
given, and Muon for --muon-steps, with a schedule of that length. Choose the rates on a seed that is not measured. Then it
times a few steps of each optimiser in turn. A run that is finished in --out is not repeated.
"""
import argparse
import concurrent.futures
import datetime
import json
import math
import pathlib
import platform
import statistics
import subprocess
import sys


def records_of(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def run(a, out, *flags):
    return subprocess.run([a.program, "train", "--preset", "shakespeare-cpu", "--data", a.data, "--threads", "1", "--out",
                           str(out), "--overwrite", *flags], check=True, capture_output=True, text=True).stdout


def train(a, name, seed, steps, flags):
    """The records of a run, which may be there."""
    out = pathlib.Path(a.out) / f"{name}-{seed}"
    if not (out / "log.jsonl").exists() or (r := records_of(out)[-1])["step"] != steps or "val_loss" not in r:
        run(a, out, "--seed", str(seed), "--max-steps", str(steps), *flags)
    return records_of(out)


def timed(a, name, turn, flags):
    """What computed a short run, and the cost of its steps."""
    out = pathlib.Path(a.out) / f"{name}-{turn}"
    header = run(a, out, "--max-steps", str(a.timed_steps), "--val-fraction", "0", "--checkpoint-every", "0",
                 "--eval-every", "0", *flags)
    device = next(line for line in header.splitlines() if line.startswith("device"))
    return device.removeprefix("device").strip(), cost(records_of(out))


def cost(records):
    """Of the steps that other work on the machine disturbed least: the first decile, in ms."""
    ms = sorted(r["ms"] for r in records[5:])
    return ms[len(ms) // 10]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("program")
    p.add_argument("data")
    p.add_argument("--out", default="runs")
    p.add_argument("--json")
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--muon-steps", type=int, default=1000)
    p.add_argument("--muon-lr", default="0.02")
    p.add_argument("--adamw-lr", help="for runs with this rate too")
    p.add_argument("--timed-steps", type=int, default=60)
    p.add_argument("--jobs", type=int, default=1, help="runs at a time, of one thread each")
    p.add_argument("--commit", default="")
    a = p.parse_args()
    muon = ["--optimizer", "muon", "--muon-lr", a.muon_lr]
    kinds = {"adamw": (a.steps, [])}
    if a.adamw_lr:
        kinds[f"adamw, lr {a.adamw_lr}"] = (a.steps, ["--lr", a.adamw_lr, "--min-lr", f"{float(a.adamw_lr) / 10:g}"])
    kinds[f"muon, muon_lr {a.muon_lr}"] = (a.muon_steps, muon + ["--eval-every", "100"])
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        runs = {(kind, seed): pool.submit(train, a, kind.replace(", ", "-").replace(" ", ""), seed, steps, flags)
                for kind, (steps, flags) in kinds.items() for seed in a.seeds}
        runs = {key: run.result() for key, run in runs.items()}

    base, muon_kind = list(kinds)[0], list(kinds)[-1]
    rows = []
    for kind, (steps, _) in kinds.items():
        losses = [runs[kind, seed][-1]["val_loss"] for seed in a.seeds]
        rows.append({"optimizer": kind, "steps": steps, "seeds": a.seeds, "val_loss": losses,
                     "mean": statistics.mean(losses)})

    def passes(seed):  # the first validation of Muon's run that is as good as AdamW's last
        goal = runs[base, seed][-1]["val_loss"]
        return next((r["step"] for r in runs[muon_kind, seed] if r.get("val_loss", math.inf) <= goal), None)

    rows[-1]["step_of_adamw_loss"] = [passes(seed) for seed in a.seeds]

    optimizers = {"adamw": [], "sgd": ["--optimizer", "sgd"], "muon, bf16": ["--optimizer", "muon"],
                  "muon, f32": ["--optimizer", "muon", "--muon-dtype", "f32"]}
    ms = {kind: [] for kind in optimizers}
    for turn in range(5):
        for kind, flags in optimizers.items():
            backend, each = timed(a, f"timed-{kind.replace(', ', '-')}", turn, flags)
            ms[kind].append(each)
    times = [{"optimizer": kind, "ms": min(x), "ratio": min(x) / min(ms["adamw"])} for kind, x in ms.items()]
    cpu = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    result = {"machine": {"cpu": cpu, "backend": backend, "threads": 1, "jobs": a.jobs}, "date":
              datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": a.commit,
              "command": " ".join(["python", *sys.argv]), "rows": rows, "optimizer_steps": times}
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(result, indent=1) + "\n")
    print("| optimizer | steps | validation loss, seeds " + ", ".join(map(str, a.seeds)) + " | mean |\n|---|---|---|---|")
    for r in rows:
        print(f"| {r['optimizer']} | {r['steps']} | {', '.join(f'{x:.3f}' for x in r['val_loss'])} | {r['mean']:.3f} |")
    print(f"Muon passes AdamW's loss at step {rows[-1]['step_of_adamw_loss']} of {a.muon_steps}.")
    print("| a step | ms | ratio |\n|---|---|---|")
    for t in times:
        print(f"| {t['optimizer']} | {t['ms']:.1f} | {t['ratio']:.2f} |")


if __name__ == "__main__":
    main()
