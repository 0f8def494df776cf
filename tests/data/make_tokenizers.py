#!/usr/bin/env python3
"""Writes tokenizers.json in this folder: small tokenizers of each kind, and what the peers make of hostile texts.

    pip install tokenizers==0.23.3 tiktoken==0.14.0
    python tests/data/make_tokenizers.py

For each case: the tokenizer.json, the texts, their ids with special tokens as text ("plain") and with special tokens
parsed and the template added ("parsed"), and what `tokenizers` decodes the latter to. The case "ranks" has a rank file
and the ids of tiktoken. The vocabularies are trained on prose.txt.
"""
import base64
import json
import pathlib
import random

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CORPUS = (HERE / "prose.txt").read_text(encoding="utf-8") + " they're I'M wasn't 1234 \u00e9t\u00e9 \u4e2d\u56fd" * 20


def texts():
    draw = random.Random(3)
    pool = [chr(c) for c in range(32, 127)] * 2 + list("\n\r\t  \u00a0\u3000\u2028\u180e\u0085") * 6
    pool += list("éüßΩд日한𠮷😀👩\u200d🏽\ufe0f\u017fK\u0301½²③٣\u2581")
    words = CORPUS.split()
    marks = ["<|end|>", "<s>", "</s>", "<mask>", " <mask> ", "MARK", "xMARKx", "<|end|><|end|>", "<unk>"]
    fixed = ["", " ", "  ", "\n \n\n x", "I'M we'LL x'S 'ſ", "1234567", "<|end|>", "a<|end|> b", "<mask>", " a  <mask>  b",
             "MARK my MARKS", "a MARK.", "\u2581", "\u2581x y", "<0x41>", "e\u0301\u0308", "the the the", "\U0002ebf0",
             "a\u0301\u0327 c\u0301\u0327", "\u1100\u1161\u11a8 \uac00\u11a8 \u212b\u0958", "MA\u0301RK e\u0301"]  # fmt: skip
    for _ in range(40):
        fixed.append("".join(draw.choice(pool) for _ in range(draw.randint(1, 30))))
        fixed.append(" ".join(draw.choice([*words, *marks]) for _ in range(draw.randint(1, 6))))
    return fixed + ["ab" * 100, " " * 70 + "x", " ".join(words[:60])]


def trained(tokenizer, size, alphabet=(), special=()):
    tokenizer.train_from_iterator(
        [CORPUS],
        trainers.BpeTrainer(vocab_size=size, initial_alphabet=list(alphabet), special_tokens=list(special), show_progress=False),
    )
    return tokenizer


def byte_level(cuts, size, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = cuts
    t.decoder = decoders.ByteLevel()
    t = trained(t, size, pre_tokenizers.ByteLevel.alphabet())
    t.add_special_tokens([AddedToken("<|end|>", normalized=False), AddedToken("<mask>", lstrip=True, normalized=False)])
    t.add_tokens([AddedToken("MARK", single_word=True, rstrip=True)])
    return t


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])  # fmt: skip


def changed(tokenizer, **keys):
    content = json.loads(tokenizer.to_str())
    content["model"].update(keys)
    return Tokenizer.from_str(json.dumps(content))


def fallback(size, cuts=None):
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t = trained(t, size, special=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))])
    t.normalizer = None
    if cuts:
        t.pre_tokenizer = cuts
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])  # fmt: skip
    content = json.loads(t.to_str())
    content["added_tokens"] = [a for a in content["added_tokens"] if a["id"] < 3]
    return Tokenizer.from_str(json.dumps(content))


def composed():
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 300)
    t.normalizer = normalizers.NFC()
    return t


def without_bytes():  # the bytes have no tokens: unknown ones, fused
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "merged_with_previous"),
                                               pre_tokenizers.Split(Regex(r"\p{P}"), "removed")])  # fmt: skip
    t.decoder = decoders.Fuse()
    t = trained(t, 300, special=["<unk>"])
    return t


def case(name, tokenizer, with_texts):
    tokenizer.encode_special_tokens = True
    plain = [tokenizer.encode(t, add_special_tokens=False).ids for t in with_texts]
    tokenizer.encode_special_tokens = False
    parsed = [tokenizer.encode(t).ids for t in with_texts]
    decoded = [tokenizer.decode(ids, skip_special_tokens=False) for ids in parsed]
    return {"name": name, "tokenizer": json.loads(tokenizer.to_str()), "plain": plain, "parsed": parsed, "decoded": decoded}


def main():
    all_texts = texts()
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                      pre_tokenizers.ByteLevel(add_prefix_space=True)])  # fmt: skip
    metaspace = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first")
    llama3 = byte_level(split(LLAMA3), 500)
    content = json.loads(llama3.to_str())  # a token that merges do not make, which ignore_merges takes
    content["model"]["vocab"]["\u0120token"] = len(content["model"]["vocab"]) + 10
    llama3 = Tokenizer.from_str(json.dumps(content))
    cases = [
        case("gpt2", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 600), all_texts),
        case("llama3", changed(llama3, ignore_merges=True), all_texts),
        case("digits", byte_level(digits, 400), all_texts),
        case("composed", composed(), all_texts),
        case("fallback", fallback(560), all_texts),
        case("metaspace", fallback(560, metaspace), all_texts),
        case("unknown", without_bytes(), all_texts),
    ]
    mapped = dict(zip(pre_tokenizers.ByteLevel.alphabet(), pre_tokenizers.ByteLevel.alphabet()))
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(b): b for b in printable}
    byte_of |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)}
    assert set(byte_of) == set(mapped)
    gpt2 = cases[0]["tokenizer"]["model"]["vocab"]
    ranks = {bytes(byte_of[c] for c in t): i for t, i in gpt2.items() if len(t) == len(t.encode("utf-8")) or set(t) <= set(byte_of)}
    peer = tiktoken.Encoding("peer", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
    file = "".join(f"{base64.b64encode(t).decode()} {i}\n" for t, i in ranks.items())
    all_cases = {
        "texts": all_texts,
        "ranks": {"file": file, "plain": [peer.encode_ordinary(t) for t in all_texts]},
        "cases": cases,
    }
    text = json.dumps(all_cases, ensure_ascii=False, separators=(",", ":"))
    (HERE / "tokenizers.json").write_text(text + "\n", encoding="utf-8")
    print(len(text.encode()), "bytes")


main()
