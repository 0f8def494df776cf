#!/usr/bin/env python3
"""Holds tests/core/compile_state.txt against the installed headers: it classifies each of their functions by what a
compiled function makes of it. A header counts for all of its functions."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = {"value", "op", "engine", "outside", "frozen", "seen", "refused"}
MOST = 224


def reached():
    roots = re.search(r"set\(TG_PUBLIC_HEADERS ([^)]*)\)", (ROOT / "cmake/public_headers.cmake").read_text()).group(1)
    todo, seen = [h if "/" in h else "models/" + h for h in roots.split()], set()
    while todo:
        if (header := todo.pop()) not in seen and (ROOT / header).exists():
            seen.add(header)
            todo += re.findall(r"#\s*include <tapegrad/([^>]+)>", (ROOT / header).read_text())
    return sorted(seen)


def functions(text):
    """The qualified names of public functions, outside of namespaces detail."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", "", text, flags=re.S | re.M)
    text = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', '""', text)
    names, scopes, start = set(), [("open", "")], 0
    for at in re.finditer(r"[{};]|\b(public|private|protected)\s*:(?!:)", text):
        head, (kind, scope) = text[start:at.start()], scopes[-1]
        start, mark = at.end(), at.group()[0]
        if at.group(1):
            scopes[-1] = ("open" if at.group(1) == "public" else "closed", scope)
            continue
        plain = re.sub(r"template\s*<(?:[^<>]|<[^<>]*>)*>", "", head)
        space = re.search(r"\bnamespace\s*([\w:]*)\s*$", plain)
        own = re.match(r"\s*(class|struct)\s+(?:\[\[\w+\]\]\s*)?([\w:]+)", plain)
        name = re.search(r"(?<![<\w:~])(?!requires\b)([\w:~]+)\s*\(", plain)
        if mark != "}" and kind == "open" and name and not own and not space and "=" not in plain[:name.start()]:
            if not re.search("~|detail::|operator|friend|delete", scope + name[1] + plain):
                names.add(scope + name[1])
        if mark == "{":
            inner = space[1].removeprefix("tg").strip(":") if space else own[2] if own else ""
            shown = kind == "open" and (space and space[1] and "detail" not in inner or own and own[1] == "struct")
            scopes.append(("open" if shown else "closed", scope + inner + "::" * bool(inner)))
        elif mark == "}" and len(scopes) > 1:
            scopes.pop()
    return names


listed, faults = {}, []
for line in (ROOT / "tests/core/compile_state.txt").read_text().splitlines():
    kind, *items = line.split()
    prefix = ""
    for item in items if kind != "#" else []:
        if item.endswith("::"):
            prefix = item
        elif kind not in KINDS or listed.setdefault(prefix + item, kind) != kind:
            faults.append(f"{kind} {item}: no kind, or another one before")
exist = set()
for header in reached():
    here = functions((ROOT / header).read_text())
    exist |= here | {header}
    if header not in listed:
        faults += [f"{header}: {x} is not classified" for x in sorted(here) if x not in listed]
if (direct := sum(not re.search("[:.]", x) for x in exist)) > MOST:
    faults.append(f"{direct} functions in tg::, above {MOST}: tg::detail and tg::kernel have helpers")
faults += [f"{x} is no header or function" for x in listed if x not in exist]
print(*faults, sep="\n")
sys.exit(bool(faults))
