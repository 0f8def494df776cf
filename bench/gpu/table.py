#!/usr/bin/env python3
"""Lines of the table of bench/gpu/run.sh.

    table.py compared FILE           a compare_torch.py file: its mean, its smallest ratio, up to eight rows
    table.py losses LOG LOG...       runs of `tapegrad train`: the distance of each from the first
    table.py ends FILE               run.json: GPU, date, commit, and `name status seconds` of each program
"""
import datetime, json, os, sys


def compared(path):
    with open(path) as f:
        report = json.load(f)
    mean, least = report["geometric_mean"], report["smallest"]
    print(f"torch {report['torch']} / ours, {len(report['rows'])} rows: " +
          (f"{mean:.2f} in the mean, least {least:.2f}" if mean else "none judged, other work was on the processors"))
    for row in sorted(report["rows"], key=lambda r: r["ratio"])[:8]:
        every = lambda times: ", ".join(f"{way} {1e3 * s:.3f}" for way, s in times.items())
        print(f"  {row['ratio']:.2f} {row['name']}: ms ours {every(row['all'])}; torch {every(row['torch_all'])}")


def losses(paths):
    runs = {}
    for path in paths:
        try:
            with open(path) as f:
                name = os.path.basename(os.path.dirname(path)).removeprefix("run_")
                runs[name] = [json.loads(line)["loss"] for line in f]
        except OSError:
            pass
    (first, of_first), *others = runs.items() or [("", [])]
    far = (f"{name} off by {max(abs(a - b) for a, b in zip(run, of_first)):.1e}" for name, run in others)
    same = (f"{d}: graph {'=' if runs[d] == runs['graph_' + d] else 'differs from'} eager" for d in ("f32", "bf16")
            if d in runs and "graph_" + d in runs)
    print(f"{len(of_first)} steps, beside {first or 'nothing'}: " + ("; ".join([*far, *same]) or "no run on a GPU"))


def ends(path):
    try:
        with open(path) as f:
            programs = [line.split() for line in f]
    except OSError:
        programs = []
    keys = ("name", "driver_version", "memory.total", "compute_cap")
    json.dump({"gpu": dict(zip(keys, filter(None, (word.strip() for word in os.environ["GPU"].split(","))))),
               "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
               "commit": os.environ["COMMIT"],
               "stages": {name: {"status": int(status), "seconds": int(seconds), "command": "bench/gpu/run.sh"}
                          for name, status, seconds in programs}}, sys.stdout, indent=1)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    {"compared": lambda: compared(rest[0]), "losses": lambda: losses(rest), "ends": lambda: ends(rest[0])}[what]()
