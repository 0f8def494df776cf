#!/usr/bin/env python3
"""`tapegrad tokenizer` next to BpeTrainer of `tokenizers`: vocabularies, merges and processor time.

    pip install tokenizers==0.23.3 tiktoken==0.14.0
    python tests/clients/trainer.py [--tapegrad build/release/bin/tapegrad] [--text FILE]... [--auto]

Corpora: the pages of the repository and each FILE, its sources, and a generated text of several scripts, emoji and
marks. Each is trained with the three patterns, with special tokens in the texts. The exit status is 1 when a vocabulary
or a merge differs, or when tapegrad takes more than half of the processor time of all. --auto also loads the folders
by AutoTokenizer of `transformers`.
"""
import json
import os
import pathlib
import random
import re
import resource
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from peers import NAMES
from programs import arguments_of, check, run
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPECIAL = ["<|endoftext|>", "<|end|>", "<|end|>of", "\n\n%%\n"]


def mixed(size):
    """Words of several scripts by Zipf's law, with runs of spaces, marks, emoji and special tokens."""
    draw = random.Random(5)
    scripts = [(0x61, 0x7B), (0x430, 0x450), (0x5D0, 0x5EB), (0x904, 0x94E), (0xE01, 0xE3B), (0x3041, 0x3097),
               (0x4E00, 0x5200), (0xAC00, 0xAF00), (0x1F600, 0x1F650)]  # fmt: skip
    words = [["".join(chr(draw.randrange(*s)) + ("" if draw.random() < 0.9 else draw.choice("\u0301\u0308\u200d\ufe0f"))
                      for _ in range(draw.randint(1, 8)))
              for _ in range(3000)] for s in scripts]  # fmt: skip
    gaps = [" "] * 30 + ["", "", "  ", "\n", "\r\n", " \t", "\u3000", " " * 9, "-" * 7, "=" * 12, "'s ", "'LL "]
    text, length = [], 0
    while length < size:
        for _ in range(draw.randint(3, 20)):
            word = draw.choice(words)[int(3000 ** draw.random()) - 1]
            text += [word if draw.random() < 0.9 else str(draw.randint(0, 10**6)), draw.choice(gaps)]
            length += len((text[-2] + text[-1]).encode())
        if draw.random() < 0.05:
            text.append(draw.choice(SPECIAL))
    return "".join(text)


def peer_of(texts, pattern, special, size):
    """The peer's vocabulary, merges and processor time. It counts special tokens in texts, so they are cut out."""
    t = Tokenizer(models.BPE())
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), as_bytes])
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    cut = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
    parts = [part for text in texts for part in cut.split(text)]
    begin = time.process_time()
    t.train_from_iterator(parts, trainer)
    return t, time.process_time() - begin


def compare(o, name, files, size, folder):
    texts = [f.read_bytes().decode() for f in files]
    total = sum(len(t.encode()) for t in texts)
    ours = theirs = count = 0
    for pattern, short in NAMES.items():
        for special in (SPECIAL,) if count else (SPECIAL, SPECIAL[:1]):
            count += 1
            out = folder / f"{name}-{short}-{len(special)}"
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run(o.tapegrad, "tokenizer", "--train", *files, "--vocab", size, "--pattern", short, "--special", *special,
                "--threads", 1, "--out", out)  # fmt: skip
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            ours += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            peer, seconds = peer_of(texts, pattern, special, size)
            theirs += seconds
            expected, found = (json.loads(t)["model"] for t in (peer.to_str(), (out / "tokenizer.json").read_text()))
            pairs = [m if isinstance(m, list) else m.split(" ") for m in expected["merges"]]
            at = next((i for i, (a, b) in enumerate(zip(pairs, found["merges"])) if a != b), None)
            check(at is None, f"{out.name}: another merge {at} than {pairs[at or 0]}")
            check(len(pairs) == len(found["merges"]), f"{out.name}: {len(found['merges'])} merges, not {len(pairs)}")
            check(expected["vocab"] == found["vocab"], f"{out.name}: another vocabulary")
            loaded, sample = Tokenizer.from_file(str(out / "tokenizer.json")), texts[0][:20000]
            ids = peer.encode(sample, add_special_tokens=False).ids
            check(loaded.encode(sample).ids == ids, f"{out.name}: other ids")
            if o.auto:
                from transformers import AutoTokenizer

                check(AutoTokenizer.from_pretrained(out)(sample).input_ids == ids, f"{out.name}: AutoTokenizer's ids")
    print(f"  {name}, {total / 1e6:.1f} MB in {len(files)} file(s): {len(found['vocab'])} tokens and {len(pairs)} "
          f"merges are equal; {ours / count:.2f} s of processor time, tokenizers {theirs / count:.2f} s: "
          f"{theirs / ours:.1f} times as fast", flush=True)  # fmt: skip
    return ours, theirs


def main():
    parser = arguments_of(__doc__)
    parser.add_argument("--text", action="append", default=[], type=pathlib.Path)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--auto", action="store_true")
    o = parser.parse_args()
    o.tapegrad = o.tapegrad.resolve()
    folders = ("core", "ops", "autograd", "cpu", "cuda", "models", "bench", "tests")
    sources = sorted(f for d in folders for f in (ROOT / d).rglob("*") if f.suffix in (".h", ".cpp", ".cu", ".py"))
    pages = sorted(f for d in folders for f in (ROOT / d).rglob("*.md")) + [ROOT / "tests/data/prose.txt", *o.text]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "mixed.txt").write_text(mixed(2_500_000), encoding="utf-8", newline="")
        corpora = {"English": pages, "code": sources, "mixed": [folder / "mixed.txt"]}
        seconds = [compare(o, name, [f for f in files if f.stat().st_size], o.vocab, folder)
                   for name, files in corpora.items()]  # fmt: skip
    ours, theirs = map(sum, zip(*seconds))
    check(2 * ours <= theirs, f"{ours:.2f} s is more than half of {theirs:.2f} s")


if __name__ == "__main__":
    main()
