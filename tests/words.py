#!/usr/bin/env python3
"""The pages: README.md has at most 1300 words, every folder a README.md, links and paths in backticks exist, and no
folder has more than 50 files."""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = "core ops autograd cpu cuda models bench tests cmake".split()
MOST_WORDS, MOST_FILES = 1300, 50

wrong = []
words = len((ROOT / "README.md").read_text().split())
if words > MOST_WORDS:
    wrong.append(f"README.md has {words} words. It is the front page: at most {MOST_WORDS}. Move text to another page.")
lacking = [f for f in FOLDERS if not (ROOT / f / "README.md").exists()]
wrong += [f"{folder}/ has no README.md. Each folder says what is in it." for folder in lacking]
files = [p for f in FOLDERS for p in (ROOT / f).rglob("*") if p.is_file()]
names = [str(p.parent.relative_to(ROOT)) for p in files if not re.search("__pycache__|/corpus/|/results/", str(p))]
for room, n in collections.Counter(names).items():
    if n > MOST_FILES:
        wrong.append(f"{room}/ has {n} files, and a folder may have {MOST_FILES}. Give some a folder of their own.")
links = paths = 0
for page in [*ROOT.glob("*.md"), *(p for p in files if p.suffix == ".md")]:
    if page.name == "CHANGELOG.md":
        continue  # history: its paths were true when they were written
    name, (text, *blocks) = page.relative_to(ROOT), page.read_text().split("```")
    if len(blocks) % 2:
        wrong.append(f"{name}: a block of code has no end")
    prose = text + "".join(blocks[1::2])
    for target in re.findall(r"\]\(([^)#\n]+)", re.sub("`[^`\n]*`", "", prose)):
        if not re.match("[a-z]+:", target):
            links += 1
            if not (page.parent / target).exists():
                wrong.append(f"{name}: the link to {target} points at nothing")
    for path in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*(?:/|[.][a-z]+))`", prose):
        paths += 1
        if not (ROOT / path).exists():
            wrong.append(f"{name}: there is no {path}")
print(*wrong, f"README.md has {words} words; {links} links and {paths} paths, {len(wrong)} mistakes", sep="\n")
sys.exit(bool(wrong) or not links or not paths)
