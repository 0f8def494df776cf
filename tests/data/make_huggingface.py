"""Writes small model folders as Hugging Face's transformers makes them, for tests/models/test_huggingface.cpp.

    python make_huggingface.py [--out DIR]

Made with Python 3.11, torch 2.15.0 (CPU, one thread), transformers 4.57.6, numpy 2.4.6. Each folder of huggingface/ has
config.json and model.safetensors of a random model, as save_pretrained() wrote them, and expected.safetensors: tokens
(2, T) i64 and the logits (2, T, V) f64 of the model in f64 on them. qwen2 is in shards, and qwen3 in bf16.
Frequencies of rope are formed in f32 there, whatever the dtype. gpt2 has training.safetensors, made with transformers
5.24.0: the losses (10) f64 of AdamW steps in f64 on expected.safetensors' tokens, with dropout by masks.py.
"""

import argparse
import pathlib
import shutil
import unittest.mock
import zlib

import masks
import torch
import transformers
from make_fixtures import load, save
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 48, "initializer_range": 0.2}
CASES = {
    "gpt2": GPT2Config(vocab_size=61, n_positions=24, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2,
                       bos_token_id=60, eos_token_id=60),
    "gpt2_untied": GPT2Config(vocab_size=61, n_positions=24, n_embd=32, n_layer=1, n_head=4, n_inner=40,
                              activation_function="gelu", layer_norm_epsilon=1e-6, initializer_range=0.2,
                              tie_word_embeddings=False, bos_token_id=60, eos_token_id=60),
    "llama": LlamaConfig(**SIZES, rope_theta=500.0, rope_scaling=LLAMA3, tie_word_embeddings=False),
    "llama_tied": LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                              rope_scaling={"rope_type": "linear", "factor": 2.0}),
    "mistral": MistralConfig(**SIZES, sliding_window=20, rms_norm_eps=1e-5),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True, rope_theta=1e6),
    "qwen3": Qwen3Config(**SIZES, head_dim=24, tie_word_embeddings=False),
}
SHARDED, BF16 = "qwen2", "qwen3"
# For sequence classification: logits (2, classes). The second row has 13 tokens. Made with transformers 5.24.0.
CLASSIFIERS = {f"{name.split('_')[0]}_classes": type(CASES[name])(**{
    **CASES[name].to_dict(), "pad_token_id": 60, "id2label": {i: f"label {i}" for i in range(classes)}})
    for name, classes in (("gpt2", 2), ("llama_tied", 1), ("mistral", 3), ("qwen2", 2), ("qwen3", 4))}


def make(name, config, folder):
    torch.manual_seed(zlib.crc32(name.encode()))
    classes = name in CLASSIFIERS
    kind = getattr(transformers, f"AutoModelFor{'SequenceClassification' if classes else 'CausalLM'}")
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, p in model.named_parameters():  # norms and biases that are 1 and 0 would hide what is exchanged
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.2)
    if name == BF16:
        model = model.to(torch.bfloat16)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size="20KB" if name == SHARDED else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    # A model of bf16 that is converted would keep frequencies of rope that were rounded to bf16.
    model = kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    tokens = torch.randint(0, config.vocab_size - classes, (2, 20))
    if classes:
        tokens[1, 13:] = config.pad_token_id
    with torch.no_grad():
        logits = model(tokens).logits
    save(folder / "expected.safetensors", {"tokens": tokens, "logits": logits}, {"model_type": config.model_type})
    print(" ", name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


def train(folder, seed=7):
    """Ten steps with the config's rates of dropout. Masks are drawn in the order in which the model drops."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    tokens = load(folder / "expected.safetensors")[0]["tokens"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    offset, drawn = 0, []

    def dropout(x, p, training, *_):
        nonlocal offset
        assert training and p == 0.1
        drawn.append(x.dim())
        if x.dim() == 4:  # weights of attention
            batch, heads, time, keys = x.shape
            mask = masks.of_attention(batch, heads, torch.arange(time)[None], keys, p, seed, offset)
            offset += batch * heads
        else:
            mask = masks.of_elements(x.shape, p, seed, offset)
            offset += (x.numel() + 3) // 4
        return x * mask

    losses = []
    with unittest.mock.patch("torch.nn.functional.dropout", dropout):
        for _ in range(10):
            logits = model.train()(tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert drawn == 10 * ([3] + [4, 3, 3] * 2), drawn
    save(folder / "training.safetensors", {"losses": torch.tensor(losses, dtype=torch.float64)}, {"seed": str(seed)})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent / "huggingface")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__)
    for name, config in {**CASES, **CLASSIFIERS}.items():
        make(name, config, out / name)
    train(out / "gpt2")


if __name__ == "__main__":
    main()
