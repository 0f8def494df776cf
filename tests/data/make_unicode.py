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
# The letter of each category, and of the others. A lower-case letter is Han too. White_Space is in no category.
LETTERS = {"U": "Lu", "L": "Ll", "T": "Lt", "M": "Lm", "O": "Lo", "C": "M", "D": "Nd", "R": "Nl", "N": "No", "P": "P", "S": "S"}
OTHER, SPACE = ".", "_"
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


def table():
    value = [OTHER] * 0x110000
    for letter, name in {**LETTERS, SPACE: "White_Space"}.items():
        for c in members(r"\s" if letter == SPACE else rf"\p{{{name}}}"):
            assert value[c] == OTHER, f"U+{c:04X} is in two categories"
            value[c] = letter
    for c in members(r"\p{Han}"):
        assert value[c] in LETTERS, f"U+{c:04X} is Han and in no category"
        value[c] = value[c].lower()
    runs = ((len(list(run)), letter) for letter, run in itertools.groupby(value))
    text = "".join(f"{length if length > 1 else ''}{letter}" for length, letter in runs)
    lines = "\n".join(f'    "{text[i : i + 113]}"' for i in range(0, len(text), 113))
    names = ", ".join(f"{letter} {name}" for letter, name in LETTERS.items())
    return f"""/// @file
/// Unicode classes of all code points, as tokenizers {version} has them. tests/data/make_unicode.py writes this file.
#pragma once
#include <string_view>

namespace tg::detail {{

/// Runs of code points from 0 on: their number, unless it is 1, and the letter of their class
/// ({names}). The letter of Han characters is in lower case; {SPACE} is
/// White_Space and {OTHER} all others.
inline constexpr std::string_view kUnicodeRuns =
{lines};

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
