"""What `tapegrad export --to gguf` writes, read by `gguf` and run by llama.cpp (`xllamacpp`).

    python tests/clients/llama_cpp.py [--tapegrad build/release/bin/tapegrad] [--program build/release/bin/encode_texts
        --vocabularies build/clients/vocabularies]

A small model of each family: `gguf` reads every key and tensor, and its quantiser makes the bytes of q8_0. llama.cpp
continues a prompt with the tokens of `tapegrad generate`, and its log-probabilities of the five most likely tokens are
those of `tapegrad eval --logits`. With vocabularies, llama.cpp's ids of hostile texts are those of tapegrad. Ends with
status 1 at the first difference.
"""

import json
import pathlib
import tempfile
import unicodedata
import urllib.request

import gguf
import numpy as np
import tokens
import xllamacpp
from programs import ROOT, arguments_of, check, run
from safetensors.numpy import load_file

TEXT = "".join(f"{a} {b} {c} on the {d}, and {d} by {d} the {b} {c} again.\n" for a in ("the", "a", "one")
               for b in ("cat", "dog", "old bird") for c in ("sat", "slept", "sang") for d in ("mat", "hill", "roof"))
LLAMA = ["--positions", "rope", "--norm", "rms_norm", "--activation", "swiglu", "--ff-width", 96, "--kv-heads", 2]
FAMILIES = {
    "gpt2": ["--activation", "gelu_tanh", "--bias", "true"],
    "gpt2 without biases": ["--activation", "gelu_tanh", "--tied-head", "false"],
    "llama": [*LLAMA, "--tied-head", "false"],
    "llama with biases": [*LLAMA, "--bias", "true", "--head-dim", 32],
    "llama, linear rope": [*LLAMA, "--rope-scaling", "linear", "--rope-factor", 2],
    "llama, llama3 rope": [*LLAMA, "--rope-theta", 500000, "--rope-scaling", "llama3", "--rope-factor", 8,
                           "--rope-original-context", 32],
    "qwen2": [*LLAMA, "--qkv-bias", "true"],
    "qwen3": [*LLAMA, "--qk-norm", "true", "--head-dim", 32, "--rope-scaling", "linear", "--rope-factor", 4],
}
ADAPTERS = {  # flags of `tapegrad finetune`
    "gpt2": ["--targets", "*"],
    "llama": ["--targets", "*.attn.q", "*.attn.v", "*.mlp.fc", "lm_head"],
    "qwen2": ["--targets", "*.attn.qkv", "*.mlp.up", "--rslora"],
    "qwen3": ["--targets", "*.attn.k", "*.attn.proj", "*.mlp.proj"],
}
PROMPT, MORE = 20, 32  # tokens


def trained(tapegrad, folder, *flags):
    (folder / "text.txt").write_text(TEXT)
    run(tapegrad, "train", "--data", folder / "text.txt", "--quiet", *flags, "--out", folder / "run")
    return folder / "run"


def server(path, context=PROMPT + MORE, adapter=None):
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel, p.warmup, p.verbosity = str(path), context, 1, False, -1
    p.cpuparams.n_threads = 1
    p.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0)] if adapter else []
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(p)


def continued(at, prompt, count=MORE, ignore_eos=True):
    """The ids that llama.cpp continues with, and the log-probabilities of the likely first ones."""
    r = at.handle_completions({"prompt": prompt, "n_predict": count, "logprobs": 5, "ignore_eos": ignore_eos,
                               "temperature": 0.0, "cache_prompt": False})
    steps = (r if isinstance(r, dict) else json.loads(r))["choices"][0]["logprobs"]["content"]
    return [s["id"] for s in steps], {x["id"]: x["logprob"] for x in steps[0]["top_logprobs"]}


def read(path):
    reader = gguf.GGUFReader(path)
    check(reader.fields["general.alignment"].contents() == 32, f"{path}: alignment")
    return reader, {t.name: t for t in reader.tensors}


def check_quantized(whole, small):
    for name, t in small.items():
        values = np.asarray(whole[name].data, dtype=np.float32)
        kind = gguf.GGMLQuantizationType
        expected = kind.F32 if values.ndim == 1 or name == "position_embd.weight" else kind.Q8_0
        check(t.tensor_type == expected, f"{name} is {t.tensor_type.name}")
        check(np.array_equal(np.asarray(t.data).view(np.uint8).ravel(),
                             gguf.quants.quantize(values, expected).view(np.uint8).ravel()), f"{name}: other bytes")


def greedy(tapegrad, words, folder):
    """A prompt, its continuation by tapegrad, and the log-probabilities of the first token."""
    run(tapegrad, "eval", *words, "--data", folder / "text.txt", "--window", PROMPT, "--batch", 1, "--logits",
        folder / "logits")
    seen = load_file(folder / "logits")
    prompt = [int(x) for x in seen["tokens"][0][:PROMPT]]
    z = seen["logits"][0][PROMPT - 1].astype(np.float64)
    z -= z.max() + np.log(np.exp(z - z.max()).sum())
    text = run(tapegrad, "generate", *words, "--prompt-ids", ",".join(map(str, prompt)), "--temperature", 0,
               "--max-tokens", MORE).decode()
    return prompt, [int(x) for x in text.replace(",", " ").split()][-MORE:], z


def family(tapegrad, name, flags, folder):
    model = trained(tapegrad, folder, "--layers", 2, "--heads", 4, "--width", 64, "--context", 64, "--batch", 8,
                    "--max-steps", 60, "--warmup", 5, "--lr", 0.01, *flags)
    prompt, ours, z = greedy(tapegrad, ["--model", model], folder)
    found = {}
    for dtype in ("f32", "q8_0", "bf16", "f16"):
        path = folder / f"{dtype}.gguf"
        run(tapegrad, "export", "--model", model, "--to", "gguf", "--out", path, "--dtype", dtype)
        found[dtype] = read(path)
    reader, whole = found["f32"]
    check_quantized(whole, found["q8_0"][1])
    for dtype, exact in (("bf16", 2**-8), ("f16", 2**-11)):
        for key, t in found[dtype][1].items():
            error = np.abs(gguf.quants.dequantize(t.data, t.tensor_type) - whole[key].data)
            check((error <= exact * np.abs(whole[key].data) + 1e-7).all(), f"{name}: {key} in {dtype}")
    far = {}
    for dtype in ("f32", "q8_0"):
        theirs, likely = continued(server(folder / f"{dtype}.gguf"), prompt)
        far[dtype] = max(abs(z[i] - p) for i, p in likely.items())
        check(dtype != "f32" or theirs == ours, f"{name}: {theirs}, not {ours}")
        check(dtype != "f32" or sorted(likely) == sorted(int(i) for i in np.argsort(-z)[:5]), f"{name}: {likely}")
    check(far["f32"] <= (3e-3 if "gpt2" in name else 1e-5) and far["q8_0"] <= 0.05, f"{name}: {far}")
    print(f"  {name}: {len(reader.fields)} keys, {len(whole)} tensors, {MORE} tokens, log-probabilities to "
          f"{far['f32']:.1e}, in q8_0 {far['q8_0']:.1e}", flush=True)


def adapter(tapegrad, name, flags, lora, folder):
    """An adapter alone, over the model of its folder: log-probabilities of the likely tokens, and all tokens."""
    model = trained(tapegrad, folder, "--layers", 2, "--heads", 4, "--width", 64, "--context", 64, "--batch", 8,
                    "--max-steps", 60, "--warmup", 5, "--lr", 0.01, *flags)
    (folder / "other.txt").write_text(TEXT.upper())
    run(tapegrad, "finetune", "--model", model, "--data", folder / "other.txt", "--out", folder / "adapter", "--quiet",
        "--batch", 8, "--max-steps", 60, "--warmup", 2, "--lr", 0.02, "--alpha", 10, "--rank", 4, *lora)
    words = ["--model", model, "--adapter", folder / "adapter"]
    prompt, ours, z = greedy(tapegrad, words, folder)
    run(tapegrad, "export", "--model", model, "--to", "gguf", "--out", folder / "base.gguf")
    run(tapegrad, "export", "--adapter", folder / "adapter", "--to", "gguf", "--out", folder / "lora.gguf")
    plain = continued(server(folder / "base.gguf"), prompt)[0]
    theirs, likely = continued(server(folder / "base.gguf", adapter=folder / "lora.gguf"), prompt)
    far = max(abs(z[i] - p) for i, p in likely.items())
    check(theirs == ours and theirs != plain, f"{name}: {theirs}, not {ours}, and without the adapter {plain}")
    check(far <= (3e-3 if "gpt2" in name else 1e-5), f"{name}: adapted log-probabilities to {far}")
    print(f"  {name}: an adapter, {MORE} tokens, log-probabilities to {far:.1e}", flush=True)


def mistral(tapegrad, folder):
    """A folder of mistral, which llama.cpp has as llama, gives the file of the llama."""
    model = trained(tapegrad, folder, "--layers", 1, "--heads", 4, "--width", 64, "--max-steps", 1, *LLAMA)
    files = []
    run(tapegrad, "export", "--model", model, "--out", folder / "hf", "--dtype", "bf16")
    for kind in ("llama", "mistral"):
        config = folder / "hf/config.json"
        content = json.loads(config.read_text())
        config.write_text(json.dumps(content | {"model_type": kind, "architectures": [kind.title() + "ForCausalLM"]}))
        (folder / kind).mkdir()
        run(tapegrad, "export", "--model", folder / "hf", "--to", "gguf", "--out", folder / kind / "m.gguf")
        files.append((folder / kind / "m.gguf").read_bytes())
    check(files[0] == files[1], "mistral: other bytes than llama's")
    fields, kinds = read(folder / "mistral/m.gguf")
    check(fields.fields["general.file_type"].contents() == 32, "mistral: file_type")
    check({t.tensor_type.name for t in kinds.values()} == {"F32", "BF16"}, "mistral: types")
    print("  mistral: the bytes of llama")


def ids(at, text, special):
    content = json.dumps({"content": text, "add_special": special, "parse_special": special}).encode()
    request = urllib.request.Request(at.listening_address + "/tokenize", content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())["tokens"]


def vocabulary(tapegrad, program, name, tokenizer, folder):
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    model = trained(tapegrad, folder, "--tokenizer", folder / "tokenizer.json", "--layers", 1, "--heads", 2, "--width",
                    32, "--context", 32, "--max-steps", 1, "--warmup", 0, *LLAMA)
    run(tapegrad, "export", "--model", model, "--to", "gguf", "--out", folder / "m.gguf", "--dtype", "f16")
    at = server(folder / "m.gguf")
    texts = tokens.hostile_texts(1000, [t["content"] for t in tokenizer["added_tokens"]][:8])
    texts = [t for t in texts if len(t) < 1000]
    if tokenizer["normalizer"] == {"type": "NFC"}:  # llama.cpp leaves out NFC
        texts = [unicodedata.normalize("NFC", t) for t in texts]
    plain, parsed, _ = tokens.run(program, folder / "tokenizer.json", texts)
    for text, *ours in zip(texts, plain, parsed, strict=True):
        for special in (False, True):
            theirs = ids(at, text, special)
            check(theirs == ours[special][0], f"{name}: {text!r} is {theirs}, not {ours[special][0]}")
    print(f"  {name}: {len(texts)} texts, the same ids", flush=True)


def vocabularies(tapegrad, program, source):
    every = {f.name: json.loads((f / "tokenizer.json").read_text()) for f in sorted(source.iterdir())}
    digits = {"type": "Digits", "individual_digits": True}
    cuts = {"type": "Sequence", "pretokenizers": [digits, every["gpt2"]["pre_tokenizer"]]}
    every["gpt2 with SmolLM's pattern"] = every["gpt2"] | {"pre_tokenizer": cuts}
    for name, tokenizer in every.items():
        with tempfile.TemporaryDirectory() as folder:
            vocabulary(tapegrad, program, name, tokenizer, pathlib.Path(folder))


def main():
    parser = arguments_of(__doc__)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/encode_texts")
    parser.add_argument("--vocabularies", type=pathlib.Path, help="what vocabularies.py wrote")
    o = parser.parse_args()
    tapegrad = o.tapegrad.resolve()
    for name, flags in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            family(tapegrad, name, flags, pathlib.Path(folder))
    for name, lora in ADAPTERS.items():
        with tempfile.TemporaryDirectory() as folder:
            adapter(tapegrad, name, FAMILIES[name], lora, pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        mistral(tapegrad, pathlib.Path(folder))
    if o.vocabularies:
        vocabularies(tapegrad, o.program.resolve(), o.vocabularies)


if __name__ == "__main__":
    main()
