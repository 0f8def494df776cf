"""Programs run by the comparisons of this folder. No program itself."""
import subprocess
import sys


def check(ok, what):
    if not ok:
        sys.exit(f"failed: {what}")


def run(*words):
    """The output of a program that must succeed."""
    done = subprocess.run([str(w) for w in words], capture_output=True)
    check(done.returncode == 0, f"{words}: {done.stderr.decode(errors='replace')}")
    return done.stdout
