#!/usr/bin/env python3
"""Compares tapegrad's tokenizers with Hugging Face's `tokenizers` and with `tiktoken` on hostile texts.

    pip install tokenizers==0.23.3 tiktoken==0.14.0
    python tests/clients/tokens.py --program build/release/bin/encode_texts --tokenizer DIR [--texts 100000]

A tokenizer is a tokenizer.json or a folder of vocab.json and merges.txt; --tokenizer may come more than once. Each text is
encoded with special tokens as text, and with special tokens parsed and the template added; what the ids decode to is
compared as well. tiktoken is asked when the tokenizer is byte-level, by the pattern of its pre-tokenizer and the order of
its vocabulary (for GPT-2 and LLaMA-3 these are its merges), and so is tapegrad's reader of rank files. The exit status is 1
when a text differs.
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

import tiktoken
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
NAMES = {GPT2: "gpt2", LLAMA3: "llama3", LLAMA3.replace("{1,3}", ""): "qwen2"}


def byte_characters():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def hostile_texts(count, specials):
    """Every kind of trouble first, random mixtures to fill up."""
    draw = random.Random(1)
    fixed = [a + b + c
             for a in ("I'M", "he'LL", "x'S '\u017f", "12345678", "  \n\n  x", " \r\n\r\n", "e\u0301", "\n \n\n \n\n\n", "")
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


def load(path):
    """The peer's tokenizer, and its tokenizer.json."""
    if path.is_dir() and not (path / "tokenizer.json").exists():
        peer = Tokenizer(models.BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt")))
        peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        peer.decoder = decoders.ByteLevel()
        peer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
        return peer, json.loads(peer.to_str())
    file = path / "tokenizer.json" if path.is_dir() else path
    return Tokenizer.from_file(str(file)), json.loads(file.read_text(encoding="utf-8"))


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


def pattern_of(cuts):
    for step in cuts.get("pretokenizers", [cuts]) if cuts else []:
        if step["type"] == "Split":
            return step["pattern"].get("Regex")
        if step["type"] == "ByteLevel" and step["use_regex"]:
            return GPT2
    return None


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
    print(f"{path}: {speed}")
    peer.encode_special_tokens = True
    wrong = report("tokenizers, special tokens as text", texts,
                   [e.ids for e in peer.encode_batch(texts, add_special_tokens=False)], [r[0] for r in as_text])  # fmt: skip
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
    bytes_of = {c: b for b, c in byte_characters().items()}
    ranks = {bytes(bytes_of[c] for c in token): i
             for token, i in content["model"]["vocab"].items() if token not in specials}  # fmt: skip
    added = {t["content"]: t["id"] for t in content["added_tokens"]}
    other = tiktoken.Encoding("peer", pat_str=pattern, mergeable_ranks=ranks, special_tokens=added)
    brief = [t for t in texts if len(t) <= 100_000]  # tiktoken takes minutes for a piece of 10^6 letters
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


sys.exit(main())
