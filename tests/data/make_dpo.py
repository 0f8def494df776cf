"""Writes losses of direct preference optimisation over the adapters of peft/, for tests/models/test_dpo.cpp.

    python make_dpo.py [--out DIR]

Made with Python 3.11, torch 2.15.0 (CPU, one thread), transformers 5.24.0, peft 0.21.2. Each file of dpo/ has inputs
(B, 2, 2, T) i32 (chosen and rejected, of each tokens and targets), and for f64 and f32 the loss at beta 0.3, the
log-probabilities (B, 2) of policy and reference, and for each tensor of the adapter, under its name, the gradient.
"""

import argparse
import pathlib
import zlib

import torch
from make_fixtures import save
from peft import PeftModel
from transformers import AutoModelForCausalLM

CASES = {"gpt2": "gpt2_c_proj", "llama": "llama_patterns"}
BETA, IGNORED = 0.3, -100


def log_probs(model, inputs):
    b, _, _, t = inputs.shape
    tokens, targets = inputs[:, :, 0].reshape(2 * b, t), inputs[:, :, 1].reshape(2 * b, t)
    kept = targets != IGNORED
    every = model(tokens).logits.log_softmax(-1).gather(-1, targets.where(kept, 0).unsqueeze(-1)).squeeze(-1)
    return (every * kept).sum(-1).reshape(b, 2)


def rotary(rope, dtype):
    """Makes rotary angles in `dtype`, which transformers makes in f32. The scaling is that of llama3."""
    c = rope.config
    o, size = c.rope_parameters, c.hidden_size // c.num_attention_heads
    inverse = o["rope_theta"] ** (-torch.arange(0, size, 2, dtype=dtype) / size)
    context = o["original_max_position_embeddings"]
    smooth = (context * inverse / (2 * torch.pi) - o["low_freq_factor"]) / (o["high_freq_factor"] - o["low_freq_factor"])
    inverse = torch.lerp(inverse / o["factor"], inverse, smooth.clamp(0, 1))

    def forward(x, position_ids):
        angles = (position_ids[..., None].to(dtype) * inverse).repeat(1, 1, 2)
        return angles.cos(), angles.sin()

    rope.forward = forward


def losses(here, base, adapter, inputs, dtype):
    model = AutoModelForCausalLM.from_pretrained(here / "huggingface" / base, dtype=dtype, attn_implementation="eager")
    if base == "llama":
        rotary(model.model.rotary_emb, dtype)
    model = PeftModel.from_pretrained(model, here / "peft" / adapter, is_trainable=True, autocast_adapter_dtype=False)
    with torch.no_grad(), model.disable_adapter():
        reference = log_probs(model, inputs)
    policy = log_probs(model, inputs)
    gain = policy - reference
    loss = -torch.nn.functional.logsigmoid(BETA * (gain[:, 0] - gain[:, 1])).mean()
    loss.backward()
    grads = {key.replace(".default", ""): p.grad for key, p in model.named_parameters() if "lora_" in key}
    return {"loss": loss.detach(), "policy": policy.detach(), "reference": reference, **grads}


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=here / "dpo")
    out = parser.parse_args().out
    out.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    for base, adapter in CASES.items():
        torch.manual_seed(zlib.crc32(base.encode()))
        tokens = torch.randint(0, 61, (3, 2, 13))
        inputs = torch.stack([tokens[..., :-1], tokens[..., 1:]], 2)
        inputs[:, :, 1, :4] = IGNORED  # the prompt
        inputs[1, 0, 1, 9:], inputs[2, 1, 1, 6:] = IGNORED, IGNORED  # shorter answers
        tensors = {"inputs": inputs.int()}
        for dtype in (torch.float64, torch.float32):
            found = losses(here, base, adapter, inputs, dtype)
            tensors |= {f"{str(dtype)[6:]}.{key}": t for key, t in found.items()}
        save(out / f"{base}.safetensors", tensors, {"base": base, "adapter": adapter, "beta": str(BETA)})
        print(" ", base, float(tensors["float64.loss"]), (out / f"{base}.safetensors").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
