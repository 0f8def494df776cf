"""Single-threaded runs of `tapegrad train --preset shakespeare-cpu`, and their logs. For optimizers/compare.py and
switchback/training.py."""
import argparse, concurrent.futures, json, pathlib, subprocess

from results_file import cpu, now, write


def parser(doc):
    """A parser with the common flags."""
    p = argparse.ArgumentParser(description=doc.splitlines()[0])
    p.add_argument("program")
    p.add_argument("data")
    p.add_argument("--out", default="runs")
    p.add_argument("--json")
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--jobs", type=int, default=1, help="runs at a time, of one thread each")
    p.add_argument("--commit", default="")
    return p


def records_of(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def run(a, name, *flags):
    """Runs a training of this name; returns its device line and its records."""
    out = pathlib.Path(a.out) / name
    text = subprocess.run([a.program, "train", "--preset", "shakespeare-cpu", "--data", a.data, "--threads", "1",
                           "--out", str(out), "--overwrite", *flags], check=True, capture_output=True, text=True).stdout
    device = next(line for line in text.splitlines() if line.startswith("device")).removeprefix("device").strip()
    (out / "header.txt").write_text(device)
    return device, records_of(out)


def trained(a, kinds):
    """{(kind, seed): run()} for {kind: (steps, flags)} and each seed; a finished run is not repeated."""
    def one(kind, seed):
        (steps, flags), out = kinds[kind], pathlib.Path(a.out) / f"{kind.replace(', ', '-').replace(' ', '')}-{seed}"
        if (out / "header.txt").exists() and (r := records_of(out)[-1])["step"] == steps and "val_loss" in r:
            return (out / "header.txt").read_text(), records_of(out)
        return run(a, out.name, "--seed", str(seed), "--max-steps", str(steps), *flags)

    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        runs = {(kind, seed): pool.submit(one, kind, seed) for seed in a.seeds for kind in kinds}
        return {key: job.result() for key, job in runs.items()}


def write_result(a, backend, **rows):
    write(a.json, {"machine": {"cpu": cpu(), "backend": backend, "threads": 1, "jobs": a.jobs}, "date": now(), **rows},
          a.commit)
