#!/usr/bin/env python3
"""tests/size.py refuses a count above its ceiling, and a commit that raises a ceiling beside other changes."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "tests").mkdir()
        for name in ("size.py", "prose.py"):
            shutil.copy(HERE / name, root / "tests")
        run = lambda *words: subprocess.run(words, cwd=root, check=True, capture_output=True)

        def commit(subject, lines, ceiling):
            (root / "a.py").write_text("x = 1\n" * lines)
            (root / "tests/ceilings").write_text(f"lines_outside_tests {ceiling}\n")
            run("git", "add", "-A")
            run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", subject)

        def judge(what, right):
            r = subprocess.run([sys.executable, "tests/size.py"], cwd=root, capture_output=True, text=True)
            if (r.returncode == 0) != right or r.stderr:
                sys.exit(f"{what}: status {r.returncode}\n{r.stdout}{r.stderr}")

        run("git", "init", "-q")
        commit("Start", 10, 10)
        judge("at the ceiling", True)
        commit("Add a line", 11, 10)
        judge("above the ceiling", False)
        commit("Raise the ceiling of lines_outside_tests: a test", 11, 12)
        judge("raised by a separate commit", True)
        (root / "tests/ceilings").write_text("lines_outside_tests 13\n")
        judge("raised, not committed, beside nothing", True)
        (root / "a.py").write_text("x = 1\n" * 12)
        judge("raised, not committed, beside a change", False)
        commit("Add a line and raise", 12, 13)
        judge("raised beside a change", False)


main()
