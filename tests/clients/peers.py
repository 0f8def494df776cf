"""Tokenizers as `tokenizers` and `tiktoken` have them. No program. Users: chats.py, masks.py, tokens.py, trainer.py,
vocabularies.py, bench/tokenizer/compare_clients.py."""
import json
import pathlib

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

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


def trained(pattern, size, special):
    """A byte-level tokenizer of prose.txt."""
    t = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    t.decoder = decoders.ByteLevel()
    text = pathlib.Path(__file__).resolve().parent.parent / "data/prose.txt"
    t.train([str(text)], trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    return t


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


def pattern_of(cuts):
    for step in cuts.get("pretokenizers", [cuts]) if cuts else []:
        if step["type"] == "Split":
            return step["pattern"].get("Regex")
        if step["type"] == "ByteLevel" and step["use_regex"]:
            return GPT2
    return None


def ranks_of(content):
    """The bytes of the tokens of a byte-level tokenizer.json, and their ids."""
    bytes_of = {c: b for b, c in byte_characters().items()}
    added = {t["content"] for t in content["added_tokens"]}
    vocabulary = content["model"]["vocab"]
    return {bytes(bytes_of[c] for c in token): i for token, i in vocabulary.items() if token not in added}


def tiktoken_of(content):
    """None where its pattern is of no family that tiktoken is asked for."""
    pattern = pattern_of(content["pre_tokenizer"])
    if pattern not in NAMES or "ByteLevel" not in json.dumps(content["pre_tokenizer"]):
        return None
    added = {t["content"]: t["id"] for t in content["added_tokens"]}
    return tiktoken.Encoding("peer", pat_str=pattern, mergeable_ranks=ranks_of(content), special_tokens=added)
