#!/usr/bin/env python3
"""Compares tapegrad's tokenizers with Hugging Face's `tokenizers` and with `tiktoken` on hostile texts.

    pip install tokenizers==0.23.3 tiktoken==0.14.0
    python tests/clients/tokens.py --program build/release/bin/encode_texts --tokenizer DIR [--texts 100000]

A tokenizer is a tokenizer.json or a folder of vocab.json and merges.txt, as vocabularies.py writes; --tokenizer may be
repeated. Each text is encoded with special tokens as text, and with special tokens parsed and the template added; the
decoded texts are compared too. Byte-level tokenizers are also compared with tiktoken, by the pattern of the
pre-tokenizer and the order of the vocabulary (for GPT-2 and LLaMA-3 the merges), and with tapegrad's reader of rank
files. The exit status is 1 when a text differs.
"""
import argparse
import base64
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

from peers import NAMES, load, pattern_of, ranks_of, tiktoken_of


def hostile_texts(count, specials):
    """Every kind of trouble first, random mixtures to fill up."""
    draw = random.Random(1)
    fixed = [a + b + c
             for a in ("I'M", "he'LL", "x'S '\u017f", "12345678", "  \n\n  x", " \r\n\r\n", "e\u0301", "\n \n\n \n\n\n",
                       "")
             for b in ("", " ", "\n", " 7", *specials)
             for c in ("", "z", "  ", "!!\n\n")]  # fmt: skip
    fixed += ["a" * 1_000_000, " " * 100_000 + "x", "ab" * 50_000 + "!", "7" * 10_000, "\u4e2d" * 50_000]
    ascii_ = [chr(c) for c in range(32, 127)] * 3
    spaces = list("\n\r\t  \u00a0\u3000\u2028\u180e\u0085") * 8
    others = list("éüßñçøåΩдйעلअก日本語한글𠮷😀👩\u200d🏽\ufe0f\u017fK\u0301\u0308ﬁ½²③٣५\u2581") * 2
    contractions = list("sStTrRmMdDlLvVeE\u017f\u212akK''''''  \n\r\t1a")
    assigned = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    marks = [c for c in assigned if unicodedata.combining(c)]
    jamo = [chr(c) for c in range(0x1100, 0x1200)] * 3 + [chr(c) for c in range(0xAC00, 0xD7A4, 97)]
    composed = marks * 3 + jamo + list("aeioucnAEIO") * 30 + [c for c in assigned if unicodedata.decomposition(c)]
    pools = (ascii_ + spaces + others, contractions, assigned, ascii_ + list(specials) * 8, composed)
    step = max(1, len(assigned) * 2 // max(1, count))  # each of them, or every n-th
    fixed += [f"{c}b 1{c}2  {c} {c * 3}\n'{c}! {c}{c}3\t{c}\r\n" for c in assigned[::step]]
    while len(fixed) < count:
        pool = draw.choice(pools)
        fixed.append("".join(draw.choice(pool) for _ in range(draw.randint(1, 60))))
    return fixed


def run(program, tokenizer, texts, *pattern):
    with tempfile.TemporaryDirectory() as folder:
        at, out = pathlib.Path(folder, "texts"), pathlib.Path(folder, "out")
        encoded = [t.encode() for t in texts]
        at.write_bytes(b"".join(struct.pack("<I", len(t)) + t for t in encoded))
        done = subprocess.run([program, tokenizer, at, out, *pattern], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{tokenizer}: {done.stderr}")
        data, pos = out.read_bytes(), 0
    results = []
    for _ in range(2 * len(texts)):
        n = struct.unpack_from("<I", data, pos)[0]
        ids = list(struct.unpack_from(f"<{n}I", data, pos + 4))
        size = struct.unpack_from("<I", data, pos + 4 + 4 * n)[0]
        pos += 8 + 4 * n + size
        results.append((ids, data[pos - size : pos]))
    return results[0::2], results[1::2], done.stdout.strip()


def report(name, texts, expected, found):
    wrong = [(t, e, f) for t, e, f in zip(texts, expected, found, strict=True) if e != f]
    print(f"  {name}: {len(texts)} texts, {len(wrong)} differ", flush=True)
    for text, e, f in wrong[:3]:
        print(f"    {text[:60]!r}: {e[:12]!r}, not {f[:12]!r}")
    return len(wrong)


def compare(path, program, count):
    peer, content = load(path)
    specials = [t["content"] for t in content["added_tokens"]][:8]
    texts = hostile_texts(count, specials)
    as_text, parsed, speed = run(program, path, texts)
    print(f"{path}: {speed}\ncovered: {len(texts)} random texts")
    peer.encode_special_tokens = True
    wrong = report("tokenizers, special tokens as text", texts,
                   [e.ids for e in peer.encode_batch(texts, add_special_tokens=False)],
                   [r[0] for r in as_text])  # fmt: skip
    peer.encode_special_tokens = False
    whole = [e.ids for e in peer.encode_batch(texts)]
    wrong += report("tokenizers, parsed, with template", texts, whole, [r[0] for r in parsed])
    byte_level = "ByteLevel" in json.dumps(content["pre_tokenizer"])
    if byte_level and not content["normalizer"]:
        wrong += report("decoded text is the text", texts, [t.encode() for t in texts], [r[1] for r in as_text])
    wrong += report("tokenizers, decoded", texts, peer.decode_batch(whole, skip_special_tokens=False),
                    [r[1].decode(errors="replace") for r in parsed])  # fmt: skip
    pattern = pattern_of(content["pre_tokenizer"])
    if not byte_level or content["normalizer"] or pattern not in NAMES:
        return wrong
    ranks = ranks_of(content)
    other = tiktoken_of(content)
    brief = [t for t in texts if len(t) <= 100_000]  # tiktoken takes minutes for 10^6 letters
    ordinary = [other.encode_ordinary(t) for t in brief]
    found = {t: r[0] for t, r in zip(texts, as_text, strict=True)}
    wrong += report("tiktoken", brief, ordinary, [found[t] for t in brief])
    with tempfile.NamedTemporaryFile("wb", suffix=".tiktoken", delete=False) as file:
        file.write(b"".join(b"%s %d\n" % (base64.b64encode(t), i) for t, i in ranks.items()))
    try:
        by_rank, _, speed = run(program, file.name, brief, NAMES[pattern])
    finally:
        os.unlink(file.name)
    return wrong + report("tiktoken, tapegrad reads ranks", brief, ordinary, [r[0] for r in by_rank])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="encode_texts, which the build makes")
    parser.add_argument("--tokenizer", action="append", required=True, type=pathlib.Path)
    parser.add_argument("--texts", type=int, default=100_000)
    o = parser.parse_args()
    return 1 if sum(compare(path, o.program, o.texts) for path in o.tokenizer) else 0


if __name__ == "__main__":
    sys.exit(main())
