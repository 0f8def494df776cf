#!/usr/bin/env python3
"""Writes bpe_training.json in this folder: tokenizers that Hugging Face's `tokenizers` trains on prose.txt and a text.

    pip install tokenizers==0.23.3
    python tests/data/make_bpe_training.py

For each case: the settings of tg::BpeTraining, the tokens by id, and the merges. The trainer counts special tokens in
texts, so they are cut out of its texts.
"""
import json
import pathlib
import random
import re

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
PATTERNS = {"gpt2": GPT2, "llama3": LLAMA3, "qwen2": LLAMA3.replace("{1,3}", "")}


def mixed():
    draw = random.Random(2)
    words = ["日本語", "中国", "日中", "e\u0301te\u0301", "हिन्दी", "👩\u200d🏽", "😀😀", "café", "aaa", "aaaaa", "abab", "<|end|>",
             "<|end|><|pad|>", "the", "12345", "1234567", "I'LL", "we're", "----", "=======", "\u3000"]  # fmt: skip
    return "".join(draw.choice(words) + draw.choice(["", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n"]) for _ in range(900))


def case(texts, pattern, special, size, least):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])  # fmt: skip
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=least, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    cut = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
    t.train_from_iterator([part for text in texts for part in cut.split(text)], trainer)
    model = json.loads(t.to_str())["model"]
    return {"pattern": pattern, "special": special, "vocab_size": size, "min_frequency": least,
            "tokens": sorted(model["vocab"], key=model["vocab"].get), "merges": model["merges"]}  # fmt: skip


def main():
    texts = [(HERE / "prose.txt").read_text(encoding="utf-8"), mixed()]
    cases = [
        case(texts, "gpt2", ["<|end|>"], 500, 2),
        case(texts, "llama3", ["<|end|>", "<|pad|>", "<|end|><|pad|>", "the"], 480, 2),
        case(texts, "qwen2", [], 20000, 40),
    ]
    text = json.dumps({"text": texts[1], "cases": cases}, ensure_ascii=False, separators=(",", ":"))
    (HERE / "bpe_training.json").write_text(text + "\n", encoding="utf-8")
    print(len(text.encode()), "bytes", [len(c["tokens"]) for c in cases])


main()
