"""Many changes of kernel files in one program, of which one at a time is switched on (mutant schemata: Untch, Offutt,
Harrold, 1993): a file is compiled once with all its changes in it. What cannot be chosen at run time, because it is
needed while the file is compiled, is left for a program of its own."""
import re, sys

from mutant import HERE, ROOT, code_of

TOKEN = re.compile(r'"[^"]*"|\'[^\']*\'|\w+|<<=|>>=|[-+*/%&|^<>=!]=|<<|>>|&&|\|\||\+\+|--|->|::|\S')
ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
BEFORE = ASSIGN | set("([{,;?:") | {"return"}  # tokens before an operand of a conditional
BEHIND = set(")]},;?:")  # tokens after it
COMPARISONS = {("<", "<="): "tg_lt", (">=", ">"): "tg_ge", ("<=", "<"): "tg_le"}


def is_operand(words, behind):
    depth = conditions = 0
    for w in words:
        depth += (w in "([{") - (w in ")]}")
        if depth == 0:
            conditions += (w == "?") - (w == ":")
        outer = depth == 0 and (w in ASSIGN or w in (",", ";", "return") or w == behind == "?")
        if depth < 0 or conditions < 0 or outer:
            return False
    return depth == conditions == 0 and len(words) > 0


def switch(k, was, now):
    """(first, last, text) of a line: text in the place of was[first:last] makes change k where it is switched on.
    None where there is none; whether one is right, the compiler says."""
    was, now = code_of(was), code_of(now)
    places, others = list(TOKEN.finditer(was)), list(TOKEN.finditer(now))
    a, b = [m[0] for m in places], [m[0] for m in others]
    same = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    rest = next((i for i in range(min(len(a), len(b)) - same) if a[-1 - i] != b[-1 - i]), min(len(a), len(b)) - same)
    old, new = a[same : len(a) - rest], b[same : len(b) - rest]
    on = f"tg_mutant({k})"
    if name := COMPARISONS.get((*old, *new)):
        return places[same].start(), places[same].end(), f"< {name}({k}) >"
    begins = same == 0 or a[same - 1] in (*";{}", "else") or (a[same - 1] == ")" and old and old[0][0].isidentifier())
    if old and not new and begins and ";" in (old[-1], *a[len(a) - rest :][:1]):
        return places[same].start(), places[same].start(), f"if ({on}); else "  # a statement that is left out
    for i in range(same, 0, -1):
        for j in range(rest, 0, -1):
            ends = len(a) - j, len(b) - j
            both = a[i : ends[0]], b[i : ends[1]]
            if a[i - 1] in BEFORE and a[-j] in BEHIND and all(is_operand(words, a[-j]) for words in both):
                first, last = places[i].start(), places[ends[0] - 1].end()
                instead = now[others[i].start() : others[ends[1] - 1].end()]
                return first, last, f"({on} ? {instead} : {was[first:last]})"
    if was.endswith(";") and now.endswith(";"):
        return places[0].start(), len(was), f"if ({on}) {{ {now} }} else {{ {was.strip()} }}"
    return None


def texts(files, edits):
    """{file: its text with the edits of it}; edits: {k: (file, line, first, last, text)}"""
    lines = {file: (ROOT / file).read_text().splitlines() for file in files}
    for file, line, first, last, text in sorted(edits.values(), reverse=True):
        s = lines[file][line]
        lines[file][line] = s[:first] + text + s[last:]
    return {file: "\n".join(code) + "\n" for file, code in lines.items()}


def edits_of(mutants):
    """Those that can be together: not two in one place."""
    edits, taken = {}, {}
    for k, m in mutants.items():
        was, line = m.place()
        edit = None if re.match(r"\s*(static |inline )*constexpr ", was) else switch(k, was, m.now)
        others = taken.setdefault((m.file, line), [])
        if edit and not any(first < edit[1] and edit[0] < last for first, last in others):
            edits[k] = m.file, line, *edit
            others.append(edit[:2])
    return edits


def compile_all(built, pool, mutants):
    """Compiles with all changes inside; returns which are, and which the compiler refuses: they are left out."""
    edits = edits_of(mutants)
    files = {file for file, *_ in edits.values()}
    left = {mutants[k].kernel for k in edits}
    while left:
        for file, text in texts(files, edits).items():
            built.write(file, text)
        order = sorted(left, key=built.bytes_of, reverse=True)  # the longest first
        said = dict(zip(order, pool.map(lambda k: built.compile(k, ["-include", str(HERE / "switch.h")]), order)))
        left = {k for k in left if said[k]}
        refused = set()
        # the line of an error, or a line that leads to it
        for pattern in r"tapegrad/cuda/([\w./]+):(\d+):\d+: error:", r"tapegrad/cuda/([\w./]+):(\d+)":
            places = {(f"cuda/{f}", int(n)) for s in said.values() for f, n in re.findall(pattern, s)}
            refused = refused or {k for k, (file, line, *_) in edits.items() if (file, line + 1) in places}
        if left and not refused:
            kernel = left.pop()
            sys.exit(f"{kernel} does not compile with switches inside:\n{said[kernel][:2000]}")
        edits = {k: e for k, e in edits.items() if k not in refused}
    return {k: m for k, m in mutants.items() if k in edits}, {k: m for k, m in mutants.items() if k not in edits}
