"""The event files of `tapegrad train --tensorboard`, read by TensorBoard.

    python tests/clients/event_files.py [--tapegrad build/release/bin/tapegrad]

A run is killed after its seventh step and resumed from the checkpoint of the fifth. EventAccumulator and
EventMultiplexer read each step once, with the numbers of log.jsonl, and the texts. Ends with status 1 at the first
difference.
"""

import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import tempfile
import time

from programs import arguments_of, check
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

STEPS, KILLED, EVERY = 12, 7, 5
TAGS = {
    "loss/train": lambda r: r["loss"],
    "loss/val": lambda r: r.get("val_loss"),
    "perplexity/val": lambda r: math.exp(r["val_loss"]) if "val_loss" in r else None,
    "lr": lambda r: r["lr"],
    "grad_norm": lambda r: r["grad_norm"],
    "tokens_per_s": lambda r: r["tokens_per_s"],
    "memory/peak_bytes": lambda r: r["peak_bytes"],
}
ROUNDED = {"tokens_per_s": 0.06}  # the log has one decimal


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def killed(tapegrad, folder, steps):
    """Kills a run when its log has this many lines, which may be a few too late."""
    log = folder / "run/log.jsonl"
    words = [tapegrad, "train", "--data", folder / "text.txt", "--tokenizer", "char", "--layers", 4, "--heads", 4,
             "--width", 256, "--context", 128, "--batch", 8, "--warmup", 2, "--max-steps", STEPS, "--eval-every", 3,
             "--checkpoint-every", EVERY, "--sample-every", 4, "--out", folder / "run",
             "--tensorboard", folder / "events"]
    run = subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL)
    while run.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") >= steps):
        time.sleep(0.002)
    if run.poll() is None:
        os.kill(run.pid, signal.SIGKILL)
    check(run.wait() == -signal.SIGKILL, f"the run ended with {run.returncode}")
    return log.read_bytes().count(b"\n")


def main():
    tapegrad = arguments_of(__doc__).parse_args().tapegrad.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("the cat sat on the mat and the dog ate the log.\n" * 200)
        steps = killed(tapegrad, folder, KILLED)
        check(KILLED <= steps < 2 * EVERY, f"the run was killed after {steps} steps")
        done = subprocess.run([tapegrad, "train", "--resume", folder / "run"], capture_output=True)
        check(done.returncode == 0, done.stderr)
        files = sorted((folder / "events").iterdir())
        check(len(files) == 2, f"{files}")
        log = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
        check([r["step"] for r in log] == list(range(1, STEPS + 1)), "log.jsonl has other steps")

        alone = EventAccumulator(str(folder / "events"))
        alone.Reload()
        many = EventMultiplexer({"run": str(folder / "events")})
        many.Reload()
        check(set(alone.Tags()["scalars"]) == set(TAGS), f"{alone.Tags()}")
        for tag, value in TAGS.items():
            expected = {r["step"]: f32(value(r)) for r in log if value(r) is not None}
            for source, events in (("accumulator", alone.Scalars(tag)), ("multiplexer", many.Scalars("run", tag))):
                check([e.step for e in events] == sorted(expected), f"{source}: {tag} at {[e.step for e in events]}")
                for e in events:
                    close = abs(e.value - expected[e.step]) <= ROUNDED.get(tag, 0) + 1e-6 * abs(e.value)
                    check(close, f"{source}: {tag} of step {e.step} is {e.value}, and {expected[e.step]} in the log")
        config = alone.Tensors("config")
        check([e.step for e in config] == [1, 6], f"config at {[e.step for e in config]}")
        check(json.loads(config[1].tensor_proto.string_val[0])["train"]["max_steps"] == STEPS, "config")
        samples = alone.Tensors("samples")
        check([e.step for e in samples] == [4, 8, 12], f"samples at {[e.step for e in samples]}")
        check(all(len(e.tensor_proto.string_val[0].decode()) > 100 for e in samples), "samples are short")
    print(f"  killed after step {steps}, resumed from {EVERY}: {STEPS} steps of {len(TAGS)} tags, each once")


if __name__ == "__main__":
    main()
