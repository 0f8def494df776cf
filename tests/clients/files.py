"""What `tapegrad export` writes, read by `safetensors` and `tokenizers`; torch and transformers are not needed.

    python tests/clients/files.py [--tapegrad build/release/bin/tapegrad]

The folders of tests/data/huggingface, which transformers wrote, keep the bits of their tensors, whole and in shards
with a right index. The tokenizer.json of a model of bytes and of one of characters gives the ids of tapegrad. Ends
with status 1 at the first difference.
"""

import json
import pathlib
import tempfile

from programs import ROOT, arguments_of, check, run
from safetensors import deserialize
from tokenizers import Tokenizer

LINES = ["The cat sat on the mat.", "  two  spaces\tand a tab", "Grüße, 漢字 und 🙂!", "e\u0301 x\u00a0y\r"]


def tensors(file):
    return {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in deserialize(file.read_bytes())}


def all_tensors(folder):
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return tensors(folder / "model.safetensors")
    content = json.loads(index.read_text())
    found = {}
    for shard in sorted(set(content["weight_map"].values())):
        here = tensors(folder / shard)
        check(all(content["weight_map"][name] == shard for name in here), f"{index} names other files")
        found |= here
    check(set(found) == set(content["weight_map"]), f"{index} has other tensors than its files")
    check(content["metadata"]["total_size"] == sum(len(t[2]) for t in found.values()), f"{index}: total_size")
    return found


def imported(tapegrad, source, folder):
    run(tapegrad, "export", "--model", source, "--out", folder / "whole")
    run(tapegrad, "export", "--model", source, "--out", folder / "shards", "--max-shard", "20KB")
    check((folder / "shards/model.safetensors.index.json").exists(), f"{source.name}: no shards")
    expected = all_tensors(source)
    for out in ("whole", "shards"):
        check(all_tensors(folder / out) == expected, f"{source.name}: other tensors in {out}")
    print(f"  {source.name}: {len(expected)} tensors, the same bits, in shards too")


def trained(tapegrad, kind, folder):
    text = folder / "text.txt"
    text.write_text("\n".join(LINES * 40), encoding="utf-8", newline="")
    run(tapegrad, "train", "--data", text, "--tokenizer", kind, "--layers", 1, "--heads", 2, "--width", 16,
        "--context", 64,
        "--batch", 2, "--max-steps", 1, "--quiet", "--activation", "gelu_tanh", "--out", folder / "run")
    run(tapegrad, "export", "--model", folder / "run", "--out", folder / "hf")
    peer = Tokenizer.from_file(str(folder / "hf/tokenizer.json"))
    for line in LINES:
        (folder / "line.txt").write_text(line, encoding="utf-8", newline="")
        run(tapegrad, "eval", "--model", folder / "hf", "--data", folder / "line.txt", "--logits", folder / "logits")
        _, shape, data = tensors(folder / "logits")["tokens"]
        ours = [int.from_bytes(data[i:i + 4], "little") for i in range(0, len(data), 4)]
        theirs = peer.encode(line).ids
        check(ours == theirs[:shape[1]] and shape[1] == len(theirs) - 1, f"{kind}: {line!r} is {ours} and {theirs}")
        check(peer.decode(theirs) == line, f"{kind}: {line!r} comes back as {peer.decode(theirs)!r}")
    print(f"  {kind}: the same ids")


def main():
    tapegrad = arguments_of(__doc__).parse_args().tapegrad.resolve()
    for source in sorted((ROOT / "tests/data/huggingface").iterdir()):
        with tempfile.TemporaryDirectory() as folder:
            imported(tapegrad, source, pathlib.Path(folder))
    for kind in ("byte", "char"):
        with tempfile.TemporaryDirectory() as folder:
            trained(tapegrad, kind, pathlib.Path(folder))


if __name__ == "__main__":
    main()
