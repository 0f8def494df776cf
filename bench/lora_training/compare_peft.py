#!/usr/bin/env python3
"""A LoRA step of `tapegrad finetune` over a base of Qwen3's shape, beside transformers and peft on the same CPU.

The weights are random, and each process makes one run: adapters on all linear layers, one window of random tokens. A
row is a base and its peers: bf16 and q4_0 (a GGUF file) beside bf16 and bitsandbytes' NF4, nf4 beside NF4, f32 beside
f32. Seconds are the median of the steps after the first; memory is the largest resident size. Both sides alternate; the
ratio is the median over the rounds. Needs gguf, safetensors, transformers, peft and bitsandbytes from PyPI."""
import argparse, json, os, resource, statistics, subprocess, sys, tempfile, time

# width, layers, heads, kv_heads, ff_width; 8b is Llama-3.1-8B, without norms of queries and keys
SHAPES = {
    "tiny": (64, 2, 4, 2, 128),
    "qwen3-0.6b": (1024, 28, 16, 8, 3072),
    "qwen3-1.7b-half": (2048, 14, 16, 8, 6144),
    "qwen3-1.7b": (2048, 28, 16, 8, 6144),
    "8b": (4096, 32, 32, 8, 14336)}
VOCABULARY = {"tiny": 512, "8b": 128256}  # others: 151936
PEERS = {"f32": ("f32",), "bf16": ("bf16", "nf4"), "q4_0": ("bf16", "nf4"), "nf4": ("nf4",)}
MODULES = ("*.attn.qkv", "*.attn.proj", "*.mlp.fc", "*.mlp.proj")


def config_of(shape):
    width, layers, heads, kv_heads, ff = SHAPES[shape]
    kind = ("llama", "Llama") if shape == "8b" else ("qwen3", "Qwen3")
    return dict(model_type=kind[0], architectures=[kind[1] + "ForCausalLM"], vocab_size=VOCABULARY.get(shape, 151936),
                hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
                head_dim=width // heads if shape == "tiny" else 128, intermediate_size=ff,
                tie_word_embeddings=shape != "8b", max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=1e6,
                hidden_act="silu")


def tensors_of(config):
    """Names and shapes of Hugging Face's tensors with their names in a GGUF file, in its order."""
    c, width, ff = config, config["hidden_size"], config["intermediate_size"]
    q, kv = (c[key] * c["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", "token_embd.weight", (c["vocab_size"], width)
    for i in range(c["num_hidden_layers"]):
        for theirs, gguf, shape in (
                ("input_layernorm", "attn_norm", (width,)), ("self_attn.q_proj", "attn_q", (q, width)),
                ("self_attn.k_proj", "attn_k", (kv, width)), ("self_attn.v_proj", "attn_v", (kv, width)),
                ("self_attn.q_norm", "attn_q_norm", (c["head_dim"],)),
                ("self_attn.k_norm", "attn_k_norm", (c["head_dim"],)), ("self_attn.o_proj", "attn_output", (width, q)),
                ("post_attention_layernorm", "ffn_norm", (width,)), ("mlp.gate_proj", "ffn_gate", (ff, width)),
                ("mlp.up_proj", "ffn_up", (ff, width)), ("mlp.down_proj", "ffn_down", (width, ff))):
            if "_norm" not in theirs or c["model_type"] == "qwen3":
                yield f"model.layers.{i}.{theirs}.weight", f"blk.{i}.{gguf}.weight", shape
    yield "model.norm.weight", "output_norm.weight", (width,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", "output.weight", (c["vocab_size"], width)


def make(where, args):
    """Models and data. A separate process: Linux counts the memory of this one in its children's largest size."""
    import numpy as np
    config, path = config_of(args.shape), f"{where}/{args.shape}"
    if (args.bases != "q4_0" or not args.no_peer) and not os.path.exists(path):
        make_folder(path, config)
    if "q4_0" in args.bases and not os.path.exists(path + ".gguf"):
        make_gguf(path + ".gguf", config)
    ids = np.random.default_rng(1).integers(0, config["vocab_size"], 16 * args.tokens)
    np.save(path + ".npy", ids.astype(np.int32))


def make_folder(folder, config):
    import torch
    from safetensors.torch import save_file
    torch.manual_seed(0)
    made = {name: torch.ones(shape, dtype=torch.bfloat16) if len(shape) == 1 else
            torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02) for name, _, shape in tensors_of(config)}
    os.makedirs(folder)
    save_file(made, f"{folder}/model.safetensors", {"format": "pt"})
    json.dump(config, open(f"{folder}/config.json", "w"))


def make_gguf(path, config):
    """Random q4_0 blocks, the table q6_K: every byte pattern with a finite scale is a block."""
    import gguf, numpy as np
    rng = np.random.default_rng(0)
    w = gguf.GGUFWriter(path, config["model_type"])
    w.add_context_length(config["max_position_embeddings"]), w.add_embedding_length(config["hidden_size"])
    w.add_block_count(config["num_hidden_layers"]), w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"]), w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(config["head_dim"]), w.add_value_length(config["head_dim"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"]), w.add_rope_freq_base(config["rope_theta"])
    for _, name, shape in tensors_of(config):
        if len(shape) == 1:
            w.add_tensor(name, np.ones(shape, np.float32))
            continue
        table = name in ("token_embd.weight", "output.weight") and shape[1] % 256 == 0
        kind, size, at = (gguf.GGMLQuantizationType.Q6_K, 210, 208) if table else \
            (gguf.GGMLQuantizationType.Q4_0, 18, 0)
        blocks = rng.integers(0, 256, (shape[0], shape[1] // (256 if size == 210 else 32), size), dtype=np.uint8)
        scale = np.float16(0.02 / (4.6 if size == 18 else 18 * 74))  # standard deviation 0.02
        blocks[..., at:at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
        w.add_tensor(name, blocks.reshape(shape[0], -1), raw_dtype=kind)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def ours(program, base, path, data, args):
    with tempfile.TemporaryDirectory() as out:
        dtype = ["--base-dtype", base] if base in ("f32", "bf16", "nf4") else []
        command = [program, "finetune", "--model", path, "--data", data, "--out", f"{out}/a", "--overwrite",
                   "--rank", "8", "--targets", *MODULES, "--batch", "1", "--window", args.tokens, "--val-fraction",
                   "0.5", "--max-steps", args.steps, "--warmup", "1", "--threads", args.threads, "--quiet", "--no-save",
                   "--eval-every", "0", "--recompute", args.recompute, "--dtype", "f32" if base == "f32" else "bf16"]
        child = subprocess.Popen([str(word) for word in command + dtype])
        usage = os.wait4(child.pid, 0)
        if usage[1]:
            raise SystemExit(f"{base}: {program} ended with {usage[1]}")
        steps = [json.loads(line) for line in open(f"{out}/a/log.jsonl")]
        ms = [step["ms"] for step in steps if "ms" in step][1:]
        return statistics.median(ms) / 1e3, usage[2].ru_maxrss * 1024, max(s.get("peak_bytes", 0) for s in steps)


def serve(kind, folder, tokens, steps, threads):
    import torch, peft, transformers
    torch.set_num_threads(threads)
    dtype = torch.float32 if kind == "f32" else torch.bfloat16
    how = {}
    if kind == "nf4":
        how["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map="cpu", **how)
    model.config.use_cache = False
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear",
                                                       task_type="CAUSAL_LM"))
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # resets VmHWM: loading does not count
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    x = torch.randint(0, model.config.vocab_size, (1, tokens))
    model.train()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        model(input_ids=x, labels=x).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    most = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(json.dumps([statistics.median(times[1:]), int(most.split()[1]) * 1024]))


def peer(kind, folder):
    out = subprocess.run([sys.executable, *sys.argv, "--serve", kind, folder], stdout=subprocess.PIPE, text=True)
    return json.loads(out.stdout.splitlines()[-1]) if out.returncode == 0 and out.stdout else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", help="tapegrad")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--bases", default="bf16,q4_0", help="a list of f32, bf16, q4_0, nf4")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--recompute", default="none")
    parser.add_argument("--folder", help="keeps the random models for the next run")
    parser.add_argument("--no-peer", action="store_true", help="ours alone")
    parser.add_argument("--json", help="write the table to this file")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        kind, path = args.serve
        return make(path, args) if kind == "make" else serve(kind, path, args.tokens, args.steps, args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        where = args.folder or scratch
        folder = f"{where}/{args.shape}"
        peer("make", where)
        rows = []
        for base in args.bases.split(","):
            mine, theirs = [], {kind: [] for kind in PEERS[base] if not args.no_peer}
            for _ in range(args.rounds):
                file = folder + (".gguf" if base == "q4_0" else "")
                mine.append(ours(args.program, base, file, folder + ".npy", args))
                for kind in theirs:
                    theirs[kind].append(peer(kind, folder))
            row = {"base": base, "seconds": statistics.median(m[0] for m in mine), "resident": max(m[1] for m in mine),
                   "counted": max(m[2] for m in mine)}
            for kind, found in theirs.items():
                if all(found):
                    row[f"peft_{kind}"] = {
                        "seconds": statistics.median(f[0] for f in found), "resident": max(f[1] for f in found),
                        "ratio": statistics.median(f[0] / m[0] for f, m in zip(found, mine))}
            rows.append(row)
            line = (f"{args.shape}, 1 x {args.tokens}, {base}: {row['seconds']:.2f} s, {row['resident'] / 1e9:.2f} GB "
                    f"(counted {row['counted'] / 1e9:.2f})")
            for kind in theirs:
                if p := row.get(f"peft_{kind}"):
                    line += (f"; peft {kind} {p['seconds']:.2f} s ({p['ratio']:.2f} times), "
                             f"{p['resident'] / 1e9:.2f} GB")
            print(line, flush=True)
        if args.json:
            json.dump({"arguments": {k: v for k, v in vars(args).items() if k not in ("serve", "program", "folder")},
                       "rows": rows}, open(args.json, "w"), indent=1)


if __name__ == "__main__":
    main()
