#!/usr/bin/env python3
"""Writes models/data/unicode_table.h, which code points are in which class, and models/data/nfc_table.h, how they are
composed. Both are asked of the library `tokenizers`.

    pip install tokenizers==0.23.3
    python tests/data/make_unicode.py [--check]

--check writes nothing and fails when the installed library has other classes than the files.
"""
import argparse
import pathlib
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers
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


def composition():
    """Decompositions, compositions of two, and combining classes, without Hangul, which follows a formula."""
    apart, together = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    decompositions, pairs, classes = [], [], []
    for c in SCALARS:
        x = chr(c)
        parts = apart(x)
        if parts != x and not 0xAC00 <= c < 0xD7A4:
            decompositions.append(f"0x{c:X}, {len(parts)}, {', '.join(f'0x{ord(p):X}' for p in parts)},")
            if together(parts) == x:
                first = together(parts[:-1])
                assert len(first) == 1
                pairs.append(f"{{0x{ord(first):X}, 0x{ord(parts[-1]):X}, 0x{c:X}}},")
        order = unicodedata.combining(x)
        other = "\u0334" if order > 1 else "\u0327"  # of the classes 1 and 202
        both = (x, other) if order > 1 else (other, x)
        # The library does not know the classes of young marks. Models were trained on what it makes of them.
        if order and (order == 202 or apart("a" + "".join(both)) == "a" + both[1] + both[0]):
            if order == 202 and apart("a" + x + "\u0334") != "a\u0334" + x:
                continue
            classes.append(f"0x{c << 8 | order:X},")
    return f"""/// @file
/// How characters are composed (NFC), as tokenizers {version} does. tests/data/make_unicode.py writes this file.
#pragma once
#include <cstdint>

namespace tg::detail {{

// clang-format off
/// A code point, the number of its parts, the parts; and so on.
inline constexpr uint32_t kDecompositions[] = {{
{chr(10).join(in_lines(decompositions))}
}};
/// Two code points and what they are together.
inline constexpr uint32_t kCompositions[][3] = {{
{chr(10).join(in_lines(pairs))}
}};
/// The code point << 8, plus its combining class, which is not 0.
inline constexpr uint32_t kCombiningClasses[] = {{
{chr(10).join(in_lines(classes))}
}};
// clang-format on

}}  // namespace tg::detail
"""


def table():
    value = [0] * 0x110000
    for i, name in enumerate(CATEGORIES):
        for c in members(rf"\p{{{name}}}"):
            assert value[c] == 0, f"U+{c:04X} is in two categories"
            value[c] = i + 1
    for bit, pattern in ((16, r"\s"), (32, r"\p{Han}")):
        for c in members(pattern):
            value[c] += bit
    ranges = []  # where each run of equal values begins
    for c in range(0x110000):
        if c == 0 or value[c] != value[c - 1]:
            ranges.append((c, value[c]))
    lines = in_lines(f"0x{c << 8 | v:X}," for c, v in ranges)
    names = ", ".join(["Other"] + CATEGORIES)
    return f"""/// @file
/// Unicode classes of all code points, as tokenizers {version} has them. tests/data/make_unicode.py writes this file.
#pragma once
#include <cstdint>

namespace tg::detail {{

// clang-format off
/// Runs of code points, in order: the first code point << 8, plus the category ({names}
/// from 0 on), plus 16 for White_Space and 32 for Han.
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
    same = True
    for name, text in (("unicode_table.h", table()), ("nfc_table.h", composition())):
        if not check:
            (FOLDER / name).write_text(text)
        elif (FOLDER / name).read_text() != text:
            print(f"tokenizers {version} makes another {name}")
            same = False
    return 0 if same else 1


sys.exit(main())
