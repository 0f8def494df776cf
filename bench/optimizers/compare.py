"""AdamW, SGD and Muon on tiny Shakespeare: validation loss by steps, and the cost of a step.

Runs `tapegrad train --preset shakespeare-cpu` for each seed: AdamW with the preset's rate, and with --adamw-lr if
given, and Muon for --muon-steps, with a schedule of that length. Choose the rates on a seed that is not measured.
"""
import math, os, statistics, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from preset_runs import parser, run, trained, write_result


def timed(a, name, turn, flags):
    """The device line of a short run, and the cost of its steps."""
    device, records = run(a, f"{name}-{turn}", "--max-steps", str(a.timed_steps), "--val-fraction", "0",
                          "--checkpoint-every", "0",
                          "--eval-every", "0", *flags)
    return device, cost(records)


def cost(records):
    """The first decile of the steps in ms: those least disturbed by other work."""
    ms = sorted(r["ms"] for r in records[5:])
    return ms[len(ms) // 10]


def main():
    p = parser(__doc__)
    p.add_argument("--muon-steps", type=int, default=1000)
    p.add_argument("--muon-lr", default="0.02")
    p.add_argument("--adamw-lr", help="for runs with this rate too")
    p.add_argument("--timed-steps", type=int, default=60)
    a = p.parse_args()
    muon = ["--optimizer", "muon", "--muon-lr", a.muon_lr]
    kinds = {"adamw": (a.steps, [])}
    if a.adamw_lr:
        kinds[f"adamw, lr {a.adamw_lr}"] = (a.steps, ["--lr", a.adamw_lr, "--min-lr", f"{float(a.adamw_lr) / 10:g}"])
    kinds[f"muon, muon_lr {a.muon_lr}"] = (a.muon_steps, muon + ["--eval-every", "100"])
    runs = {key: records for key, (_, records) in trained(a, kinds).items()}
    base, muon_kind = list(kinds)[0], list(kinds)[-1]
    rows = []
    for kind, (steps, _) in kinds.items():
        losses = [runs[kind, seed][-1]["val_loss"] for seed in a.seeds]
        rows.append({"optimizer": kind, "steps": steps, "seeds": a.seeds, "val_loss": losses,
                     "mean": statistics.mean(losses)})

    def passes(seed):  # Muon's first validation at or below AdamW's last
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
    if a.json:
        write_result(a, backend, rows=rows, optimizer_steps=times)
    print("| optimizer | steps | validation loss, seeds " + ", ".join(map(str, a.seeds))
          + " | mean |\n|---|---|---|---|")
    for r in rows:
        print(f"| {r['optimizer']} | {r['steps']} | {', '.join(f'{x:.3f}' for x in r['val_loss'])} | {r['mean']:.3f} |")
    print(f"Muon passes AdamW's loss at step {rows[-1]['step_of_adamw_loss']} of {a.muon_steps}.")
    print("| a step | ms | ratio |\n|---|---|---|")
    for t in times:
        print(f"| {t['optimizer']} | {t['ms']:.1f} | {t['ratio']:.2f} |")


if __name__ == "__main__":
    main()
