"""Writes adapters as PEFT makes them over the models of huggingface/, for tests/models/test_peft.cpp.

    python make_peft.py [--out DIR]

Made with Python 3.11, torch 2.15.0 (CPU, one thread), transformers 5.24.0, peft 0.21.2. Each folder of peft/ has
adapter_config.json and adapter_model.safetensors of random A and B, as save_pretrained() wrote them, and
expected.safetensors: tokens (2, T) i64, the logits (2, T, V) f64 of the adapted model in f64, and for each tensor of
the adapter, under its name, the gradient of the sum of squared logits, divided by 1000. tests/clients/adapters.py uses
the same configurations. gguf_llama2 is an adapter as PEFT starts it over gguf/llama2.gguf,
which transformers dequantises (needs gguf 0.19.0), with tokens (B, T) and the losses of steps of AdamW on them.
"""

import argparse
import pathlib
import shutil
import zlib

import peft
import torch
import transformers
from make_fixtures import save
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

# The folder of huggingface/, and options of LoraConfig.
CASES = {
    "gpt2_c_proj": ("gpt2", {"target_modules": ["attn.c_proj", "c_attn"], "r": 3, "lora_alpha": 5}),
    "gpt2_untied_all": ("gpt2_untied", {"target_modules": "all-linear", "r": 2, "lora_alpha": 4, "use_rslora": True}),
    "llama_patterns": ("llama", {"target_modules": ["q_proj", "v_proj", "gate_proj", "down_proj"], "r": 2,
                                 "lora_alpha": 6, "use_rslora": True,
                                 "rank_pattern": {r"layers\.1\.self_attn\.q_proj": 5, "down_proj": 3},
                                 "alpha_pattern": {"^model.layers.0.mlp.gate_proj": 9.5}}),
    "llama_tied_regex": ("llama_tied", {"target_modules": r".*?\.1\.(?:self_attn|mlp)\.(k|up|o)_proj$", "r": 4,
                                        "lora_alpha": 8}),
    "mistral_layers": ("mistral", {"target_modules": ["q_proj", "k_proj", "v_proj", "up_proj"],
                                   "layers_to_transform": [1], "exclude_modules": ["1.self_attn.k_proj"], "r": 4,
                                   "lora_alpha": 1}),
    "qwen2_head": ("qwen2", {"target_modules": "all-linear", "exclude_modules": r".*\.o_proj", "r": 2,
                             "lora_alpha": 3}),
    "qwen3_all": ("qwen3", {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                               "down_proj", "lm_head"], "r": 4, "lora_alpha": 8}),
}
# With a head that trains whole.
CLASSIFIERS = {"mistral_score": ("mistral_classes", {"target_modules": "all-linear", "r": 2, "lora_alpha": 4,
                                                     "task_type": "SEQ_CLS"})}


def adapted(base, options, dtype=torch.float64):
    """A model with random A and B in f32, which are exact in `dtype`."""
    kind = AutoModelForSequenceClassification if "task_type" in options else AutoModelForCausalLM
    model = kind.from_pretrained(base, dtype=dtype, attn_implementation="eager")
    config = LoraConfig(**{"task_type": "CAUSAL_LM", "lora_dropout": 0.0, **options})
    model = get_peft_model(model, config, autocast_adapter_dtype=False)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key or "modules_to_save" in key:
                p.copy_((torch.randn_like(p, dtype=torch.float32) * 0.2).to(dtype))
    return model.eval()


def adapter_gradients(model, tokens):
    """Logits, and gradients by the names of the file."""
    logits = model(tokens).logits
    (logits.double().square().sum() / 1000).backward()
    grads = {key.replace(".modules_to_save", "").replace(".default", ""): p.grad.clone()
             for key, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), grads


def save_adapter(model, folder, base, name):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace(str(base), name))


def make(name, base, options, folder):
    torch.manual_seed(zlib.crc32(name.encode()))
    model = adapted(base, options)
    vocabulary = model.config.vocab_size - (name in CLASSIFIERS)
    tokens = torch.randint(0, vocabulary, (2, 12))
    logits, grads = adapter_gradients(model, tokens)
    save_adapter(model.float(), folder, base, base.name)
    save(folder / "expected.safetensors", {"tokens": tokens, "logits": logits, **grads}, {"base": base.name})
    print(" ", name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


def make_losses(file, folder, steps=20):
    torch.manual_seed(zlib.crc32(file.name.encode()))
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32,
                                                 attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear"))
    save_adapter(model, folder, file.parent, file.name)
    tokens, losses = torch.randint(0, model.config.vocab_size, (1, 4, 24)).repeat(steps, 1, 1), []
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0)
    for batch in tokens:
        losses.append(model(input_ids=batch, labels=batch).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    save(folder / "expected.safetensors", {"tokens": tokens[0], "losses": torch.stack(losses).detach().double()}, {})


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=here / "peft")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__, "peft", peft.__version__)
    for name, (base, options) in {**CASES, **CLASSIFIERS}.items():
        make(name, here / "huggingface" / base, options, out / name)
    make_losses(here / "gguf/llama2.gguf", out / "gguf_llama2")


if __name__ == "__main__":
    main()
