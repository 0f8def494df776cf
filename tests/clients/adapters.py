"""Adapters of PEFT, both ways, against peft itself. Run by hand, with peft 0.21.2 and 0.17.1:

    python tests/clients/adapters.py [--tapegrad build/release/bin/tapegrad]

needs torch, transformers and peft. For each configuration of tests/data/make_peft.py, peft's adapter over a random
model must give its logits in `tapegrad eval --adapter`, and after `merge`; `tapegrad finetune --adapter` without a step
of learning must write its tensors again, bit for bit. Adapters of `tapegrad finetune` over each family must load in
peft without a missing or unexpected key, with the same logits, also after merge_and_unload(), and peft must be able to
train them further. Ends with status 1 at the first difference.
"""

import pathlib
import sys
import tempfile

import peft
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data"))
from hf import distance, load, write_ids
from make_huggingface import CASES as MODELS
from make_peft import CASES, adapted
from programs import arguments_of, check, run

# Families, and flags of `tapegrad finetune`.
OURS = {
    "gpt2": ["--targets", "*.attn.qkv", "*.mlp.fc", "*.attn.proj"],
    "llama": ["--targets", "*.attn.qkv", "*.mlp.fc", "lm_head"],
    "llama_tied": ["--targets", "h.1.attn.q", "*.attn.v", "*.mlp.gate", "*.mlp.proj", "--rslora"],
    "mistral": ["--targets", "*.attn.qkv", "*.mlp.up"],
    "qwen2": ["--targets", "*"],
    "qwen3": ["--targets", "*.attn.k", "*.attn.proj"],
}


def logits_of(tapegrad, folder, words, ids):
    write_ids(folder / "ids.bin", [*ids[0].tolist(), 0])
    run(tapegrad, "eval", *words, "--data", folder / "ids.bin", "--window", ids.numel(), "--logits",
        folder / "logits.safetensors")
    return load_file(folder / "logits.safetensors")["logits"]


def base_model(name, folder):
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(folder / "base")
    return torch.randint(0, model.config.vocab_size, (1, 12))


def theirs(tapegrad, name, folder):
    base, options = CASES[name]
    ids = base_model(base, folder)
    model = adapted(folder / "base", options, torch.float32)
    model.save_pretrained(folder / "adapter")
    with torch.no_grad():
        expected = model(ids).logits
    words = ["--model", folder / "base", "--adapter", folder / "adapter"]
    error = distance(logits_of(tapegrad, folder, words, ids), expected)
    check(error <= 1e-5, f"{name}: logits differ by {error}")
    run(tapegrad, "merge", *words, "--out", folder / "merged")
    with torch.no_grad():
        merged = distance(load(folder / "merged", dtype=torch.float32)(ids).logits, expected)
    check(merged <= 1e-5, f"{name}: logits of the merged model differ by {merged}")
    run(tapegrad, "finetune", *words, "--data", folder / "ids.bin", "--out", folder / "again", "--lr", 0, "--min-lr", 0,
        "--max-steps", 1, "--window", 4, "--batch", 1, "--val-fraction", 0, "--quiet")
    before = load_file(folder / "adapter/adapter_model.safetensors")
    after = load_file(folder / "again/adapter_model.safetensors")
    before = {k: t for k, t in before.items() if "base_layer" not in k}
    check(before.keys() == after.keys(), f"{name}: other tensors after finetune")
    for key, t in before.items():
        check(torch.equal(after[key], t), f"{name}: {key} changed without a step")
    print(f"  {name}: logits to {error:.1e}, {merged:.1e} merged; written again with the same bits")


def ours(tapegrad, name, flags, folder):
    ids = base_model(name, folder)
    write_ids(folder / "data.bin", torch.randint(0, MODELS[name].vocab_size, (400,)).tolist())
    run(tapegrad, "finetune", "--model", folder / "base", "--data", folder / "data.bin", "--out", folder / "adapter",
        "--window", 16, "--batch", 4, "--max-steps", 8, "--lr", 0.02, "--warmup", 0, "--rank", 4, "--alpha", 12,
        *flags, "--quiet")
    expected = logits_of(tapegrad, folder, ["--model", folder / "base", "--adapter", folder / "adapter"], ids)
    model = load(folder / "base", dtype=torch.float32)
    with torch.no_grad():
        before = distance(model(ids).logits, expected)
    model = PeftModel.from_pretrained(model, folder / "adapter", is_trainable=True)
    result = model.load_adapter(folder / "adapter", adapter_name="default")
    keys = [k for k in result.missing_keys if "lora_" in k] + list(result.unexpected_keys)
    check(not keys, f"{name}: missing or unexpected {keys}")
    adapters = {k for k, p in model.named_parameters() if "lora_" in k}
    saved = load_file(folder / "adapter/adapter_model.safetensors")
    check({k.replace(".default", "") for k in adapters} == set(saved), f"{name}: peft made other adapters than saved")
    with torch.no_grad():
        error = distance(model(ids).logits, expected)
    check(error <= 1e-5 and before > 1e-2, f"{name}: logits differ by {error}, without the adapter by {before}")
    model(ids).logits.square().sum().backward()
    check(all(p.grad is not None for k, p in model.named_parameters() if k in adapters), f"{name}: no gradient")
    with torch.no_grad():
        merged = distance(model.merge_and_unload()(ids).logits, expected)
    check(merged <= 1e-5, f"{name}: logits differ by {merged} after merge_and_unload()")
    print(f"  {name}: finetuned here, in peft the same logits to {error:.1e}, {merged:.1e} merged")


def main():
    tapegrad = arguments_of(__doc__).parse_args().tapegrad.resolve()
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__, "peft", peft.__version__)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            theirs(tapegrad, name, pathlib.Path(folder))
    for name, flags in OURS.items():
        with tempfile.TemporaryDirectory() as folder:
            ours(tapegrad, name, flags, pathlib.Path(folder))
    print("all is well")


if __name__ == "__main__":
    main()
