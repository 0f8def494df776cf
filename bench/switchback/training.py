"""A GPT on tiny Shakespeare with the products of its blocks in f32 and in 8 bits: validation losses and curves.

    python bench/switchback/training.py build/release/bin/tapegrad input.txt --out runs --json result.json

Runs `tapegrad train --preset shakespeare-cpu --linear KIND` for each seed and kind. Says how far each run ends from the
plain one of its seed, and fails if one ends more than --within above it. A run that is finished in --out is not repeated.
"""
import argparse
import concurrent.futures
import datetime
import json
import pathlib
import subprocess
import sys


def train(a, kind, seed):
    """The header of a run, and its records."""
    out = pathlib.Path(a.out) / f"{kind}-{seed}"
    log, header = out / "log.jsonl", out / "header.txt"
    done = header.exists() and (r := json.loads(log.read_text().splitlines()[-1]))["step"] == a.steps and "val_loss" in r
    if not done:
        text = subprocess.run([a.program, "train", "--preset", "shakespeare-cpu", "--data", a.data, "--threads", "1",
                               "--out", str(out), "--overwrite", "--seed", str(seed), "--max-steps", str(a.steps),
                               "--eval-every", "100", "--checkpoint-every", "0", "--linear", kind],
                              check=True, capture_output=True, text=True).stdout
        header.write_text(next(line for line in text.splitlines() if line.startswith("device")))
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return header.read_text().removeprefix("device").strip(), [r for r in records if "val_loss" in r]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("program")
    p.add_argument("data")
    p.add_argument("--out", default="runs")
    p.add_argument("--json")
    p.add_argument("--kinds", nargs="+",
                   default=["plain", "switchback", "switchback-vector-wise", "switchback-memory-efficient"])
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--within", type=float, default=0.01, help="largest distance of the last losses, as a share")
    p.add_argument("--jobs", type=int, default=1, help="runs at a time, of one thread each")
    p.add_argument("--commit", default="")
    a = p.parse_args()
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        runs = {(kind, seed): pool.submit(train, a, kind, seed) for seed in a.seeds for kind in a.kinds}
        runs = {key: run.result() for key, run in runs.items()}

    last = {key: curve[-1]["val_loss"] for key, (_, curve) in runs.items()}
    rows = [{"linear": kind, "seed": seed, "val_loss": last[kind, seed],
             "above_plain": last[kind, seed] / last[a.kinds[0], seed] - 1,
             "curve": [[r["step"], r["val_loss"]] for r in runs[kind, seed][1]]} for kind in a.kinds for seed in a.seeds]
    backend = runs[a.kinds[0], a.seeds[0]][0]
    result = {"machine": {"backend": backend, "threads": 1, "jobs": a.jobs},
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": a.commit,
              "command": " ".join(["python", *sys.argv]), "rows": rows}
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(result) + "\n")
    print("| linear | seed | validation loss | above plain, % |\n|---|---|---|---|")
    for r in rows:
        print(f"| {r['linear']} | {r['seed']} | {r['val_loss']:.4f} | {100 * r['above_plain']:+.2f} |")
    worst = max(r["above_plain"] for r in rows)
    if worst > a.within:
        sys.exit(f"a run ends {100 * worst:.2f} % above the plain one; {100 * a.within:g} % are allowed")


if __name__ == "__main__":
    main()
