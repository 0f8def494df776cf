"""Programs run by the comparisons of this folder. No program itself."""
import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def arguments_of(doc):
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--tapegrad", type=pathlib.Path, default=ROOT / "build/release/bin/tapegrad")
    return parser


def check(ok, what):
    if not ok:
        sys.exit(f"failed: {what}")


def run(*words):
    """The output of a program that must succeed."""
    done = subprocess.run([str(w) for w in words], capture_output=True)
    check(done.returncode == 0, f"{words}: {done.stderr.decode(errors='replace')}")
    return done.stdout
