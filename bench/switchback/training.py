"""A GPT on tiny Shakespeare with the GEMMs of its blocks in f32 and in 8 bits: validation losses and curves."""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from preset_runs import parser, trained, write_result


def main():
    p = parser(__doc__)
    p.add_argument("--kinds", nargs="+",
                   default=["plain", "switchback", "switchback-vector-wise", "switchback-memory-efficient"])
    p.add_argument("--within", type=float, default=0.01, help="largest distance of the last losses, as a share")
    a = p.parse_args()
    runs = trained(a, {kind: (a.steps, ["--eval-every", "100", "--checkpoint-every", "0", "--linear", kind])
                       for kind in a.kinds})
    last = {key: records[-1]["val_loss"] for key, (_, records) in runs.items()}
    rows = [{"linear": kind, "seed": seed, "val_loss": last[kind, seed],
             "above_plain": last[kind, seed] / last[a.kinds[0], seed] - 1,
             "curve": [[r["step"], r["val_loss"]] for r in runs[kind, seed][1] if "val_loss" in r]}
            for kind in a.kinds for seed in a.seeds]
    if a.json:
        write_result(a, runs[a.kinds[0], a.seeds[0]][0], rows=rows)
    print("| linear | seed | validation loss | above plain, % |\n|---|---|---|---|")
    for r in rows:
        print(f"| {r['linear']} | {r['seed']} | {r['val_loss']:.4f} | {100 * r['above_plain']:+.2f} |")
    worst = max(r["above_plain"] for r in rows)
    if worst > a.within:
        sys.exit(f"a run ends {100 * worst:.2f} % above the plain one; {100 * a.within:g} % are allowed")


if __name__ == "__main__":
    main()
