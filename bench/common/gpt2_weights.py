"""A GPT-2 with random weights, and its Hugging Face folder. For lm_profile/compare_llamacpp.py and
gpt_training/compare_llmc.py."""
import json, os

import numpy as np
from safetensors.numpy import save_file

SIZES = {"124m": dict(width=768, layers=12, heads=12, vocab=50257, context=1024),
         "tiny": dict(width=64, layers=2, heads=2, vocab=300, context=128)}  # fmt: skip


def weights(size, seed=0):
    """Hugging Face's names, with Linear weights (in, out). Values are exact in bf16."""
    c, draw = size["width"], np.random.default_rng(seed)

    def normal(*shape, std=0.02):
        bits = (draw.standard_normal(shape, np.float32) * np.float32(std)).view(np.uint32)
        return (bits & 0xFFFF0000).view(np.float32)

    w = {"wte.weight": normal(size["vocab"], c), "wpe.weight": normal(size["context"], c)}
    norms = ["ln_f"]
    for i in range(size["layers"]):
        h = f"h.{i}."
        norms += [h + "ln_1", h + "ln_2"]
        for name, n, m in (("attn.c_attn", c, 3 * c), ("attn.c_proj", c, c), ("mlp.c_fc", c, 4 * c),
                           ("mlp.c_proj", 4 * c, c)):
            w[h + name + ".weight"], w[h + name + ".bias"] = normal(n, m, std=0.05), normal(m)
    for name in norms:
        w[name + ".weight"], w[name + ".bias"] = 1 + normal(c), normal(c)
    return w


def write_folder(path, size, w):
    os.makedirs(path)
    with open(path + "/config.json", "w", encoding="utf-8") as f:
        json.dump({"model_type": "gpt2", "vocab_size": size["vocab"], "n_positions": size["context"],
                   "n_embd": size["width"], "n_layer": size["layers"], "n_head": size["heads"],
                   "activation_function": "gelu_new"}, f)  # fmt: skip
    save_file({"transformer." + name: np.ascontiguousarray(x) for name, x in w.items()}, path + "/model.safetensors")
