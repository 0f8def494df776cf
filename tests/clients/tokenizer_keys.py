"""Keys of the files beside a tokenizer.json, and the ids that transformers gives with them:

    python tests/clients/tokenizer_keys.py [--write]

needs transformers 5.24. Compares tests/data/tokenizer_keys.json, which tests/models/test_foreign_files.cpp walks, with
AutoTokenizer, or writes it. A case that tapegrad refuses must have other ids than the tokenizer.json alone.
"""
import itertools
import json
import pathlib
import sys
import tempfile

import tokenizers
import transformers

TEXT = "the <x> the</s><|endoftext|> the the\u00e9"
PLAIN = {"content": "<x>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
ADDED = {"__type": "AddedToken", **PLAIN}
ALL = {str(i): {**PLAIN, "content": t} for i, t in enumerate(("<|endoftext|>", "<s>", "</s>"))}
FLAGS = """add_prefix_space add_bos_token add_eos_token legacy do_lower_case strip_accents clean_up_tokenization_spaces
    from_slow fix_mistral_regex trim_offsets vocab split_special_tokens add_dummy_prefix truncation_side padding_side
    language model_max_length max_length stride""".split()
TOKENS = [f"{k}_token" for k in "bos eos unk sep pad cls mask image".split()]
KEYS = [{k: v} for k in FLAGS for v in (("left", "right") if k.endswith("_side") else (True, False, 2))]
KEYS += [{k: v} for k in TOKENS for v in ("<x>", ADDED)]
KEYS += [{f"{k}_special_tokens": v} for k in ("extra", "additional") for v in (["<x>"], [ADDED], ["the", "<x>"])]
KEYS += [{f"{k}_special_tokens": {"image_token": "<x>"}} for k in ("extra", "model_specific")]
KEYS += [{"extra_special_tokens": x, "additional_special_tokens": ["<x>"]} for x in ([], ["the"])]
KEYS += [{"added_tokens_decoder": {**ALL, "263": {**PLAIN, "lstrip": strip}}} for strip in (False, True)]
CLASSES = [{}, *({"tokenizer_class": c} for c in ("GPT2Tokenizer", "PreTrainedTokenizerFast", "LlamaTokenizer"))]
CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"


def folders():
    gpt2 = CLASSES[1]
    yield from ({CONFIG: {**named, **key}} for named in CLASSES[1:3] for key in [{}, *KEYS])
    for more in ({}, {"added_tokens_decoder": ALL}):
        yield from ({CONFIG: {**gpt2, **more}, MAP: key} for key in KEYS)
        yield {CONFIG: {**gpt2, **more}, "added_tokens.json": {"<x>": 263}}
    for named, model, prefix in itertools.product(CLASSES, ("gpt2", "llama", "mistral", "qwen3"), (True, False)):
        if named or model != "qwen3":
            yield {CONFIG: {**named, "add_prefix_space": prefix}, "config.json": {"model_type": model}}


def base():
    vocabulary = {t: i for i, t in enumerate(("<|endoftext|>", "<s>", "</s>"))}
    for c in sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()) + ["th", "the", "\u0120the", "\u00c3\u00a9"]:
        vocabulary[c] = len(vocabulary)
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("\u00c3", "\u00a9")]
    t = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    t.add_special_tokens(["<|endoftext|>", "<s>", "</s>"])
    return json.loads(t.to_str())


def ids_of(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            pathlib.Path(folder, name).write_text(json.dumps(content))
        try:
            return transformers.AutoTokenizer.from_pretrained(folder)(TEXT, add_special_tokens=False)["input_ids"]
        except (TypeError, AttributeError, ValueError):
            return None  # no tokenizer there


def main():
    path = pathlib.Path(__file__).resolve().parents[1] / "data" / "tokenizer_keys.json"
    tokenizer = base()
    cases = [{"files": f, "ids": ids} for f in folders() if (ids := ids_of({"tokenizer.json": tokenizer, **f}))]
    text = json.dumps({"tokenizer": tokenizer, "text": TEXT, "cases": cases}, separators=(",", ":"))
    text = text.replace('{"files"', '\n{"files"')
    if "--write" in sys.argv:
        path.write_text(text + "\n")
    elif path.read_text() != text + "\n":
        sys.exit(f"{path} has other ids than transformers {transformers.__version__}")
    print(f"{len(cases)} folders, ids of transformers")


if __name__ == "__main__":
    main()
