#!/usr/bin/env python3
"""The size of the repository, held to tests/ceilings: python3 tests/size.py

Counts lines of code outside tests and in tests, and words of comments. Prints lines and characters per line by folder
and the difference to the base: the common ancestor with origin/main, else the parent commit. A commit that raises a
ceiling changes tests/ceilings alone, with the subject "Raise the ceiling of <name>: <reason>". A count more than SLACK
below its ceiling lowers it.
"""
import collections
import re
import subprocess
import sys

import prose

CODE = re.compile(r"(^|/)(CMakeLists\.txt|run|[^/]+\.(h|cpp|cu|cuh|py|cmake|sh|in|sed))$")
NOT_CODE = re.compile(r"(^|/)(results|corpus)/")
FILE, SLACK = "tests/ceilings", 100
RAISES = "Raise the ceiling of "


def git(*words):
    words = ["git", "-c", f"safe.directory={prose.ROOT}", *words]
    r = subprocess.run(words, cwd=prose.ROOT, capture_output=True, text=True)
    return r.stdout if r.returncode == 0 else ""


def numbers(text):
    return {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)$", text, re.M)}


def folder_of(name):
    if not CODE.search(name) or NOT_CODE.search(name):
        return None
    return name.split("/")[0] if "/" in name else "root"


def raised(before, after):
    old, new = numbers(before), numbers(after)
    return [name for name in old if new.get(name, 0) > old[name] or name not in new]


def unpaid():
    """Raised ceilings without a commit that only raises them."""
    wrong = []
    for commit in git("log", "--no-merges", "--format=%H", "-50", "--", FILE).split():
        names = raised(git("show", f"{commit}^:{FILE}"), git("show", f"{commit}:{FILE}"))
        files = git("diff-tree", "--no-commit-id", "--name-only", "-r", commit).split()
        subject = git("log", "-1", "--format=%s", commit).strip()
        if names and (files != [FILE] or not subject.startswith(RAISES)):
            wrong.append(f"commit {commit[:9]} raises {', '.join(names)}: it may change {FILE} alone, as '{RAISES}...'")
    names = raised(git("show", f"HEAD:{FILE}"), (prose.ROOT / FILE).read_text())
    changed = [line[3:] for line in git("status", "--porcelain", "--untracked-files=no").splitlines()]
    if names and changed != [FILE]:
        wrong.append(f"{FILE} raises {', '.join(names)} beside changes of other files: commit those apart")
    return wrong


def main():
    files = git("ls-files").split("\n")
    if files == [""]:
        print("skipped: git lists no files here")
        return 0
    lines, size = collections.Counter(), collections.Counter()
    for name in files:
        folder, path = folder_of(name), prose.ROOT / name
        if folder and path.is_file():
            data = path.read_bytes()
            lines[folder] += data.count(b"\n")
            size[folder] += len(data)
    head = git("rev-parse", "HEAD").strip()
    base = git("merge-base", "HEAD", "origin/main").strip()
    base = base if base and base != head else git("rev-parse", "HEAD^").strip()
    more_lines, old_size = collections.Counter(), collections.Counter()
    for row in git("diff", "--numstat", "--no-renames", base).splitlines() if base else []:
        plus, minus, name = row.split("\t")
        if folder_of(name) and plus != "-":
            more_lines[folder_of(name)] += int(plus) - int(minus)
    for row in git("ls-tree", "-r", "-l", base).splitlines() if base else []:
        meta, name = row.split("\t")
        if folder_of(name):
            old_size[folder_of(name)] += int(meta.split()[3])
    print(f"{'folder':9} {'lines':>7} {'change':>7} {'characters a line':>18} {'before':>7}")
    for folder in sorted(lines):
        old_lines = lines[folder] - more_lines[folder]
        before = f"{old_size[folder] / old_lines:7.1f}" if base and old_lines else ""
        print(f"{folder:9} {lines[folder]:7} {more_lines[folder]:+7} {size[folder] / lines[folder]:18.1f} {before}")
    counts = {
        "lines_outside_tests": lines.total() - lines["tests"],
        "lines_in_tests": lines["tests"],
        "words_of_comments": prose.words_of_comments().total(),
    }
    wrong = unpaid()
    for name, most in numbers((prose.ROOT / FILE).read_text()).items():
        print(f"{name}: {counts[name]} of at most {most}")
        if counts[name] > most:
            wrong.append(f"{name} is {counts[name]}, above {most}: delete some, or raise it in a separate commit")
        elif counts[name] < most - SLACK:
            wrong.append(f"{name} is {counts[name]}: lower its ceiling in {FILE} to at most {counts[name] + SLACK}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
