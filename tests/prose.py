#!/usr/bin/env python3
"""The lint of comments and pages: python3 tests/prose.py [--words] [--sample N SEED] [PATH...]

Refuses words that have a standard term, sentences without a subject, possessives without a noun, trailing comments over
60 characters or that begin with a preposition, and lines over 120 columns; prints file, line, what was found and what
to write. --words prints the words of comments by folder, --sample N draws N comments of each folder, --all prints
findings below the ceilings too.
"""
import argparse
import collections
import pathlib
import random
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ".ci core ops autograd cpu cuda models bench tests cmake".split()
SLASHES = {".h", ".cpp", ".cu", ".cuh", ".in"}
HASHES = {".py", ".cmake", ".sh"}
SKIPPED = re.compile(r"(^|/)(results|corpus|tests/data)/|^LICENSE")
MOST_TRAILING, MOST_COLUMNS, MOST_PAGE = 60, 120, 150
LONG_PAGES = {"README.md", "ops/README.md", "CHANGELOG.md"}

# pattern -> what to write instead
TERMS = {
    r"neighbours?": "adjacent, contiguous, next",
    r"(lies?|lay) (together|side by side|one after|where|in|at|on|beside|behind|before|there)|lying": "is stored, is",
    r"turned(?! (off|on|into|out|away))|on (its|their) side": "transposed",
    r"stretch(es)?": "chunk, range, segment",
    r"pieces?": "chunk, segment, token",
    r"(?<!exit )(?<!error )(?<!status )(?<!source )(?<!return )codes": "quantized values (or exit codes, error codes)",
    r"quick(er|est|ly)?(?! start)": "fast, faster, fastest",
    r"twins?": "reference, copy, plain version",
    r"stand-?ins?": "fake, stub",
    r"goes on|went on|go on|under way|on (its|their) way": "continues, resumes, in flight, asynchronous",
    r"of (one's|its|their|his|our|your) own": "custom, separate, own",
    r"beside|besides": "next to, compared with, except",
    r"but for": "except, without",
    r"(of|in|for|from|by|with|on|at|to) (which|whom|whose)": "two sentences",
    r"so (many|much)(?! (that|as))|as many(?! as)|so few": "a number or a name",
    r"some \d+": "about N",
    r"(adds?|added|adding) up|summed up": "sum, accumulate, reduce",
    r"whole pages": "4 KiB",
    r"hands?( on| over|ed)": "pass",
    r"what (is|are|was|were|has|have|it|they|there) (left|there|in it|of it)": "the rest, the contents",
    r"nobody": "no one, no caller",
    r"(?<!at )(?:most|least) \d+": "at most N, at least N, max",
    r"(its|their) rest": "remainder",
}
# Rules of comments alone. CLEAN folders keep them; CEILINGS has the most findings in the others, and may only fall.
CLEAN = re.compile(r"(autograd|bench|cmake|core|cpu|cuda|models|ops|tests(?!/mutants))/")
CEILINGS = {"leading preposition": 3, "vague term": 3}
LEADING = re.compile(
    r"(above|after|also|among|as|at|before|below|beyond|between|by|during|else|except|for|from|in|inside|into|like|of|on|"
    r"only|outside|over|per|since|through|to|under|until|via|with|within|without)\b"
)
VAGUE = {
    r"the library": "its name: cuBLASLt, NCCL",
    r"numbers of(?! \d)": "counts of",
    r"(both|two|three|another|same|this|that|which|one|other) ways?|ways": "mode, kernel, format, direction",
    r"(calls?|nodes?|ops?|readers?|reads?|steps?) (that )?waits? for": "depends on",
    r"(the )?first of (the )?equals?": "the lowest index on ties",
    r"theirs|ours": "the name of the format or program",
    r"^(index|order): [a-z]+": "indexed by, sorted by",
}
POSSESSIVE = re.compile(r"\b[A-Za-z_]+(?:'s|s')(?=$|[.;:])")
STARTS = re.compile(r"(?:^|[.!?:;] )(Of|What|That|Null|Whose|Which|Likewise|Nothing of)\b(?!-)")


def comments(path):
    """(first line, text, is trailing) of each comment."""
    lines = path.read_text(errors="replace").split("\n")
    mark = r"#(?!!)" if path.suffix in HASHES or path.name == "CMakeLists.txt" or path.name == "run" else r"///?<?"
    text = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(?P<mark>' + mark + r")(?: |$)")
    at, found = None, []
    for number, line in enumerate(lines, 1):
        hit = next((m for m in text.finditer(line) if m["mark"]), None)
        if hit is None:
            at = None
            continue
        body, alone = line[hit.end() :].strip(), not line[: hit.start()].strip()
        if alone and at is not None:
            found[at][1].append(body)
        else:
            at = len(found) if alone else None
            found.append((number, [body], not alone))
    return found


def check(where, first, lines, trailing, say):
    text = re.sub(r"`[^`]*`|\b\w+\([^)]*\)|\b\w+(?:::\w+)+", lambda m: re.sub(r"\w", "_", m[0]), "\n".join(lines))
    flat = text.replace("\n", " ")
    line_of = lambda i: first + text.count("\n", 0, i)
    for pattern, instead in TERMS.items():
        for m in re.finditer(r"\b(?:" + pattern + r")\b", flat, re.I):
            say(where, line_of(m.start()), f"'{m[0]}': write {instead}")
    for m in STARTS.finditer(flat):
        say(where, line_of(m.start(1)), f"a sentence begins with '{m[1]}': subject first, verb second")
    if trailing and len(lines[0]) > MOST_TRAILING:
        say(where, first, f"a trailing comment of {len(lines[0])} characters: at most {MOST_TRAILING}, or above the line")


def newer(where, first, lines, trailing, say):
    """The rules of CEILINGS; say(rule, ...)."""
    text = re.sub(r"`[^`]*`", "", " ".join(lines))
    if trailing and (m := LEADING.match(text)):
        say("leading preposition", where, first, f"'{m[0]}' begins a trailing comment: a noun first, or no comment")
    for pattern, instead in VAGUE.items():
        for m in re.finditer(r"\b(?:" + pattern + r")\b", text, re.I):
            say("vague term", where, first, f"'{m[0]}': write {instead}")
    for m in POSSESSIVE.finditer(text):
        say("vague term", where, first, f"'{m[0]}' ends a clause: write the noun")


def prose_of_page(path):
    """(line, text) of paragraphs, without blocks of code, tables' rules and links."""
    inside, at, out = False, None, []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if line.startswith("```"):
            inside, at = not inside, None
        elif inside or not line.strip():
            at = None
        elif at is None or line.startswith(("|", "-", "#")):
            out.append((number, [line.lstrip("|-# ")]))
            at = len(out) - 1
        else:
            out[at][1].append(line)
    return out


def files_of(paths):
    """(path, name, whether it is code) of the files to read."""
    for place in (ROOT / p for p in paths or [*FOLDERS, "CMakeLists.txt", *ROOT.glob("*.md")]):
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            name = str(path.relative_to(ROOT))
            code = path.suffix in SLASHES | HASHES or path.name in ("CMakeLists.txt", "run")
            if not SKIPPED.search(name) and name != "tests/prose.py" and (code or path.suffix == ".md"):
                yield path, name, code


def words_of_comments():
    words = collections.Counter()
    for path, name, code in files_of([]):
        for _, lines, _ in comments(path) if code else []:
            words[name.split("/")[0]] += len(" ".join(lines).split())
    return words


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--words", action="store_true")
    cli.add_argument("--all", action="store_true")
    cli.add_argument("--sample", type=int, nargs=2)
    cli.add_argument("paths", nargs="*")
    options = cli.parse_args()
    wrong, drawn, later = [], collections.defaultdict(list), collections.defaultdict(list)
    say = lambda *what: wrong.append("%s:%d: %s" % what)
    put = lambda rule, *what: say(*what) if CLEAN.match(what[0]) else later[rule].append("%s:%d: %s" % what)
    for path, name, code in files_of(options.paths):
        if not code:
            n = path.read_text().count("\n")
            if n > MOST_PAGE and name not in LONG_PAGES:
                say(name, n, f"{n} lines: a page has at most {MOST_PAGE}")
            for first, lines in prose_of_page(path):
                check(name, first, lines, False, say)
            continue
        for first, lines, trailing in comments(path):
            drawn[name.split("/")[0]].append((name, first, " ".join(lines)))
            check(name, first, lines, trailing, say)
            newer(name, first, lines, trailing, put)
        for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
            if len(line) > MOST_COLUMNS:
                say(name, number, f"{len(line)} columns: at most {MOST_COLUMNS}")
    if options.sample:
        pick = random.Random(options.sample[1])
        for folder in sorted(drawn):
            for where in pick.sample(drawn[folder], min(options.sample[0], len(drawn[folder]))):
                print("%s:%d: %s" % where)
    elif options.words:
        words = words_of_comments()
        print(*(f"{folder:8} {n:6}" for folder, n in sorted(words.items())), f"all      {words.total():6}", sep="\n")
    else:
        for rule, most in CEILINGS.items():
            print(f"{rule}: {len(later[rule])} of at most {most} outside clean folders")
            wrong += later[rule] if options.all or len(later[rule]) > most else []
        print(*wrong, f"{len(wrong)} findings", sep="\n")
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
