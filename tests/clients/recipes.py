"""The presets gpt2-124m-llmc and gpt2-124m-track3 beside the public files: model, optimiser and schedule are taken from
the files and set to f64; both sides begin with the same weights and read the same shard. The models have 2 layers of
width 256. Needs torch, safetensors and the target recipe_steps.

    recipes.py --llmc train_gpt2.py --track3 train_gpt_simple.py [--f32]
"""
import math
import os
import pathlib
import re
import subprocess
import tempfile
import textwrap
import types

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file

from programs import ROOT, arguments_of, check

BATCH, CONTEXT, VOCABULARY, ACCUMULATE = 2, 64, 512, 2


def wide(source):
    """The source in f64."""
    for narrow in (".bfloat16()", ".float()"):
        source = source.replace(narrow, ".double()")
    return source.replace("torch.float32", "torch.float64").replace("@torch.compile\n", "")


def between(source, first, last):
    return textwrap.dedent(source[source.index(first):source.index(last)])


def shard(path):
    """A text with structure: each token is near the one before it."""
    steps = np.random.default_rng(1).integers(-3, 4, size=1 << 16)
    tokens = (np.cumsum(steps) % VOCABULARY).astype("<u2")
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return torch.from_numpy(tokens.astype(np.int64))


def windows(tokens, step):
    """The micro-batches of a step, in order."""
    size = BATCH * CONTEXT
    for i in range(step * ACCUMULATE, (step + 1) * ACCUMULATE):
        some = tokens[i * size:(i + 1) * size + 1]
        yield some[:-1].view(BATCH, CONTEXT), some[1:].view(BATCH, CONTEXT)


def unzipped(w, prefix, other, names):
    return {other + theirs + "." + part: w[prefix + ours + "." + part] for ours, theirs in names.items()
            for part in ("weight", "bias") if prefix + ours + "." + part in w}


def run_llmc(path, tokens, w, steps):
    source = wide(path.read_text())
    at = {"print0": lambda *a: None, "__name__": "public"}
    exec(source[:source.index("# Our own simple Distributed Data Loader")], at)
    torch.set_default_dtype(torch.float64)
    model = at["GPT"](at["GPTConfig"](block_size=CONTEXT, vocab_size=VOCABULARY, n_layer=2, n_head=4, n_embd=256))

    def named(w):
        to = {"transformer.wte.weight": w["wte.weight"], "transformer.wpe.weight": w["wpe.weight"],
              "lm_head.weight": w["wte.weight"]}
        to |= unzipped(w, "", "transformer.", {"ln_f": "ln_f"})
        for i in range(2):
            to |= unzipped(w, f"h.{i}.", f"transformer.h.{i}.",
                           {"ln_1": "ln_1", "ln_2": "ln_2", "attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj",
                            "mlp.fc": "mlp.c_fc", "mlp.proj": "mlp.c_proj"})
        return to

    model.load_state_dict(named(w), strict=False)
    args = types.SimpleNamespace(learning_rate=6e-4, warmup_iters=5, num_iterations=steps, learning_rate_decay_frac=0.0)
    get_lr = re.search(r"^    def get_lr\(it\):\n(?:        .*\n|\n)+", source, re.M).group(0)
    at |= {"args": args, "math": math}
    exec(textwrap.dedent(get_lr), at)
    optimizer = model.configure_optimizers(0.1, args.learning_rate, (0.9, 0.95), "cpu", 0)
    losses = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for x, y in windows(tokens, step):
            loss = model(x, y)[1] / ACCUMULATE
            total += loss.item()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = at["get_lr"](step)
        optimizer.step()
        losses.append(total)
    return losses, dict(model.named_parameters()), named


def run_track3(path, tokens, w, steps):
    source = wide(path.read_text())
    torch.set_default_dtype(torch.float64)
    at = {"torch": torch, "nn": torch.nn, "F": F, "dist": dist, "Tensor": torch.Tensor, "AdamW": torch.optim.AdamW}
    exec(between(source, "class RMSNorm", "# torchrun sets these env variables"), at)
    model = at["GPT"](vocab_size=VOCABULARY, num_layers=2, model_dim=256)
    # Pairs are (x_2i, x_2i+1) here and (x_i, x_i+64) there, where the angle is negative.
    heads = 2
    order = torch.cat([torch.arange(0, 128, 2), torch.arange(1, 128, 2)])
    sign = torch.cat([torch.ones(64), -torch.ones(64)])

    def turned(x):
        rest = x.shape[1:]
        return (x.view(heads, 128, *rest)[:, order] * sign.view(1, 128, *[1] * len(rest))).reshape(x.shape)

    def named(w):
        to = {"embed.weight": w["wte.weight"], "norm1.gains": w["ln_emb.weight"], "norm2.gains": w["ln_f.weight"]}
        to |= unzipped(w, "", "", {"lm_head": "proj"})
        for i in range(2):
            to |= unzipped(w, f"h.{i}.", f"blocks.{i}.", {"attn.proj": "attn.proj", "mlp.fc": "mlp.fc",
                                                         "mlp.proj": "mlp.proj"})
            for j in (1, 2):
                to[f"blocks.{i}.norm{j}.gains"] = w[f"h.{i}.ln_{j}.weight"]
            for part in ("weight", "bias"):
                q, k, v = w[f"h.{i}.attn.qkv.{part}"].chunk(3)
                to |= {f"blocks.{i}.attn.{n}.{part}": x for n, x in (("q", turned(q)), ("k", turned(k)), ("v", v))}
        return to

    model.load_state_dict(named(w), strict=False)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    dist.init_process_group("gloo", rank=0, world_size=1)
    at |= {"model": model, "train_steps": steps}
    end = "    ########################################\n    #        Training"
    exec(between(source, "    # create the optimizer(s)", end).replace("fused=True", "foreach=False"), at)
    losses = []
    for step in range(steps):
        total = 0.0
        for x, y in windows(tokens, step):
            loss = model(x, y)
            total += loss.item()
            loss.backward()
        at["set_hparams"](step)
        for optimizer in at["optimizers"]:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        losses.append(total / (ACCUMULATE * BATCH * CONTEXT))
    dist.destroy_process_group()
    return losses, dict(model.named_parameters()), named


def main():
    parser = arguments_of(__doc__)
    parser.add_argument("--llmc", type=pathlib.Path, required=True)
    parser.add_argument("--track3", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/recipe_steps")
    parser.add_argument("--f32", action="store_true", help="100 losses in f32 beside those in f64")
    o = parser.parse_args()
    steps, dtype = (100, "f32") if o.f32 else (20, "f64")
    for preset, public, path in (("gpt2-124m-llmc", run_llmc, o.llmc), ("gpt2-124m-track3", run_track3, o.track3)):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            tokens = shard(folder / "shard.bin")
            subprocess.run([o.program, preset, folder / "shard.bin", folder, str(steps), dtype], check=True)
            ours = [float(x) for x in (folder / "losses.txt").read_text().split()]
            state = lambda name: {k: x.double() for k, x in load_file(folder / name).items()}
            losses, theirs, named = public(path, tokens, state("init.safetensors"), steps)
            final = named(state("final.safetensors"))
        apart = max(abs(a - b) for a, b in zip(ours, losses, strict=True))
        check(theirs.keys() <= final.keys(), f"{preset}: no value for {theirs.keys() - final.keys()}")
        largest = max(float(x.detach().abs().max()) for x in theirs.values())
        weights = max(float((x.detach() - final[k]).abs().max()) for k, x in theirs.items()) / largest
        print(f"{preset}: {steps} losses in {dtype}, {losses[0]:.4f} to {losses[-1]:.4f}, within {apart:.1e}; "
              f"parameters within {weights:.1e} of the largest")
        check(apart <= (1e-3 if o.f32 else 1e-9), f"{preset}: losses")
        check(o.f32 or weights <= 1e-7, f"{preset}: parameters")


if __name__ == "__main__":
    main()
