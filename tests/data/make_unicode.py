#!/usr/bin/env python3
"""Writes models/data/unicode_table.h, which code points are in which class, as the library `tokenizers` has them.

    pip install tokenizers==0.23.3
    python tests/data/make_unicode.py [--check]

--check writes nothing and fails when the installed library has other classes than the file.
"""
import argparse
import itertools
import pathlib
import sys

from tokenizers import Regex, pre_tokenizers
from tokenizers import __version__ as version

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "models/data"
# Each code point has one of these categories, or "Other"; White_Space and Han go across them.
CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "M", "Nd", "Nl", "No", "P", "S"]
SCALARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def members(pattern):
    """The code points that the pattern matches: those that the splitter removes."""
    splitter = pre_tokenizers.Split(Regex(pattern), behavior="removed")
    found = set()
    for i in range(0, len(SCALARS), 4096):
        part = SCALARS[i : i + 4096]
        text = "".join(map(chr, part))
        kept = set()
        for _, (begin, end) in splitter.pre_tokenize_str(text):
            kept.update(text[begin:end])
        found.update(c for c in part if chr(c) not in kept)
    return found


def in_lines(cells):
    lines, line = [], ""
    for cell in cells:
        if len(line) + len(cell) > 114:
            lines.append("    " + line.rstrip())
            line = ""
        line += cell + " "
    return [*lines, "    " + line.rstrip()]


def table():
    value = [0] * 0x110000
    for i, name in enumerate(CATEGORIES):
        for c in members(rf"\p{{{name}}}"):
            assert value[c] == 0, f"U+{c:04X} is in two categories"
            value[c] = i + 1
    for bit, pattern in ((16, r"\s"), (32, r"\p{Han}")):
        for c in members(pattern):
            value[c] += bit
    runs = ((len(list(run)), v) for v, run in itertools.groupby(value))
    lines = in_lines(f"{length << 6 | v}," for length, v in runs)
    names = ", ".join(["Other"] + CATEGORIES)
    return f"""/// @file
/// Unicode classes of all code points, as tokenizers {version} has them. tests/data/make_unicode.py writes this file.
#pragma once
#include <cstdint>

namespace tg::detail {{

// clang-format off
/// Runs of code points from 0 on: their number << 6, plus the category from 0 on
/// ({names}), plus 16 for White_Space and 32 for Han.
inline constexpr uint32_t kUnicodeRuns[] = {{
{chr(10).join(lines)}
}};
// clang-format on

}}  // namespace tg::detail
"""


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true")
    check = arguments.parse_args().check
    path = FOLDER / "unicode_table.h"
    if not check:
        path.write_text(table())
    elif path.read_text() != table():
        print(f"tokenizers {version} makes another {path.name}")
        return 1
    return 0


sys.exit(main())
