"""Model folders of Hugging Face, both ways, against transformers itself. Run by hand, with 4.57.6 and with 5.23.0:

    python tests/clients/hf.py [--tapegrad build/release/bin/tapegrad] [--tokenizer tokenizer.json] [--text FILE]

needs torch and transformers. Each family's random model has the logits of transformers (`tapegrad eval --logits`), its
greedy tokens, and its weights after ten steps of AdamW (`tapegrad train --model`). After `tapegrad export` it must load
without a missing, unexpected or mismatched key, with the same bits of weights and the same logits. A model that
tapegrad trained must load in the same way after `tapegrad export`, and make the same greedy tokens as `tapegrad
generate`. A llama with the tokenizer of --tokenizer is finetuned on --text, merged and exported. Ends with status 1 at
the first difference.
"""

import json
import pathlib
import re
import shutil
import string
import struct
import sys
import tempfile

import llama_cpp
import torch
import transformers
from programs import ROOT, arguments_of, check, run
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data"))
from make_huggingface import CASES

LLAMA = ["--positions", "rope", "--norm", "rms_norm", "--activation", "swiglu", "--kv-heads", "2", "--norm-eps", "1e-6"]
TRAINED = {
    "gpt2": ["--activation", "gelu_tanh", "--bias", "true"],
    "gpt2 without biases": ["--activation", "gelu", "--bias", "false", "--tied-head", "false"],
    "llama": [*LLAMA, "--rope-theta", "5000", "--rope-scaling", "llama3", "--rope-factor", "4",
              "--rope-original-context", "16"],
    "llama, linear scaling": [*LLAMA, "--tied-head", "false", "--rope-scaling", "linear", "--rope-factor", "2"],
    "qwen2": [*LLAMA, "--qkv-bias", "true"],
    "qwen3": [*LLAMA, "--qk-norm", "true", "--head-dim", "24", "--norm-affine", "false"],
}


def load(folder, **options):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        check(not info.get(key), f"{folder}: {key} {info.get(key)}")
    return model.eval()


def bytes_to_tokens(folder, count):
    """The tokenizer.json of `count` characters, each a token."""
    vocabulary = {c: i for i, c in enumerate((string.ascii_letters + string.digits)[:count])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    (folder / "tokenizer.json").write_text(json.dumps(
        {"pre_tokenizer": level, "decoder": {"type": "ByteLevel"},
         "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
    return "".join(vocabulary)


def write_ids(path, ids):
    path.write_bytes(struct.pack(f"<{len(ids)}H", *ids))


def distance(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def same_logits(tapegrad, name, model, folder, length=20):
    """`tapegrad eval --logits` on one window of tokens."""
    ids = torch.randint(0, model.config.vocab_size, (1, length + 1))
    write_ids(folder / "ids.bin", ids[0].tolist())
    run(tapegrad, "eval", "--model", folder / "from", "--data", folder / "ids.bin", "--window", length, "--logits",
        folder / "logits.safetensors")
    ours = load_file(folder / "logits.safetensors")
    check(torch.equal(ours["tokens"].long(), ids[:, :length]), f"{name}: eval saw other tokens")
    with torch.no_grad():
        error = distance(ours["logits"], model(ids[:, :length]).logits)
    check(error <= 2e-5, f"{name}: logits differ by {error}")
    return error


def same_greedy_tokens(tapegrad, name, model, folder):
    characters = bytes_to_tokens(folder / "from", model.config.vocab_size)
    prompt = characters[3:11]
    context = getattr(model.config, "n_positions", None) or model.config.max_position_embeddings
    sliding = getattr(model.config, "sliding_window", None)
    count = sliding - len(prompt) if sliding else 32  # mistral is read only within its window
    ours = run(tapegrad, "generate", "--model", folder / "from", "--prompt", prompt, "--temperature", 0, "--max-tokens",
               count, "--ignore-eos")
    ids = torch.tensor([[characters.index(c) for c in prompt]])
    for _ in range(count):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids[:, -context:]).logits[:, -1:].argmax(-1)], 1)
    theirs = "".join(characters[i] for i in ids[0].tolist())
    check(ours.decode() == theirs + "\n", f"{name}: greedy tokens are {ours} here and {theirs} there")
    return count


def same_steps(tapegrad, name, model, folder, steps=10, length=16):
    """Ten steps of AdamW on one window, against torch's: all weights, by norm."""
    ids = torch.randint(0, model.config.vocab_size, (1, length + 1))
    write_ids(folder / "window.bin", ids[0].tolist())
    run(tapegrad, "train", "--model", folder / "from", "--data", folder / "window.bin", "--out", folder / "tuned",
        "--window", length, "--batch", 1, "--val-fraction", 0, "--max-steps", steps, "--warmup", 0, "--schedule",
        "constant", "--lr", 1e-3, "--beta1", 0.9, "--beta2", 0.99, "--weight-decay", 0.1, "--clip-norm", 1,
        "--eval-every", 0, "--quiet")
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.99), eps=1e-8)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(ids[:, :length]).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[0, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    tuned = load(folder / "tuned", dtype=torch.float32)
    check(AutoConfig.from_pretrained(folder / "tuned").model_type == model.config.model_type, f"{name}: kind of folder")
    worst = 0
    for (key, p), (_, q) in zip(tuned.named_parameters(), model.named_parameters()):
        if key.endswith("k_proj.bias"):  # the gradient is rounding only
            continue
        if key.endswith("c_attn.bias"):
            p, q = (torch.cat([b.chunk(3)[0], b.chunk(3)[2]]) for b in (p, q))
        error = ((p - q).norm() / q.norm()).item()
        check(error <= 1e-4, f"{name}: {key} differs by {error} after {steps} steps")
        worst = max(worst, error)
    return worst


def published(tapegrad, name, config, folder):
    """transformers -> tapegrad -> transformers, whole and in shards, and through bf16."""
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(folder / "from")
    tokens = torch.randint(0, config.vocab_size, (2, 20))
    with torch.no_grad():
        expected = model(tokens).logits
    for out, flags in (("same", []), ("shards", ["--max-shard", "20KB"]), ("half", ["--dtype", "bf16"])):
        run(tapegrad, "export", "--model", folder / "from", "--to", "hf", "--out", folder / out, *flags)
        again = load(folder / out, dtype=torch.float32)
        state = again.state_dict()
        for key, p in model.state_dict().items():
            check(torch.equal(state[key], p.bfloat16().float() if out == "half" else p), f"{name} {out}: {key}")
        with torch.no_grad():
            error = (again(tokens).logits - expected).abs().max() / expected.abs().max()
        check(out == "half" or error == 0, f"{name} {out}: logits differ by {error}")
        check(AutoConfig.from_pretrained(folder / out).model_type == config.model_type, f"{name}: model_type")
    print(f"  {name}: same weights and logits after export, in shards too; bf16 is rounded once")
    error = same_logits(tapegrad, name, model, folder)
    count = same_greedy_tokens(tapegrad, name, model, folder)
    worst = same_steps(tapegrad, name, model, folder)
    print(f"  {name}: logits to {error:.1e}, the same {count} greedy tokens, weights after ten steps to {worst:.1e}")


def trained(tapegrad, name, flags, folder, text):
    """tapegrad -> transformers: greedy tokens of both."""
    flags = [*flags, "--layers", 2, "--heads", 4, "--width", 64, "--context", 64, "--batch", 8, "--max-steps", 40]
    run(tapegrad, "train", "--data", text, "--tokenizer", "byte", *flags, "--lr", "3e-3", "--out", folder / "run")
    run(tapegrad, "export", "--model", folder / "run", "--to", "hf", "--out", folder / "hf")
    prompt = "The "
    words = ["--prompt", prompt, "--max-tokens", "32", "--temperature", "0"]
    ours = run(tapegrad, "generate", "--model", folder / "run", *words)
    check(run(tapegrad, "generate", "--model", folder / "hf", *words) == ours, f"{name}: tapegrad reads another model")
    model = load(folder / "hf")
    tokens = model.generate(torch.tensor([list(prompt.encode())]), max_new_tokens=32, do_sample=False,
                            pad_token_id=0)[0].tolist()
    check(bytes(tokens) + b"\n" == ours, f"{name}: {bytes(tokens)} and {ours}")
    print(f"  {name}: {model.config.model_type}, the same 32 greedy tokens")


def finetuned(tapegrad, tokenizer, text, folder):
    """A folder of transformers -> finetune -> merge -> export -> transformers, with a tokenizer of the world."""
    torch.manual_seed(0)
    source = folder / "from"
    source.mkdir()
    shutil.copy(tokenizer, source / "tokenizer.json")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"))
    config = LlamaConfig(vocab_size=len(fast) + 3, hidden_size=128, intermediate_size=352, num_hidden_layers=4,
                         num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=2048)
    AutoModelForCausalLM.from_config(config).save_pretrained(source)
    fast.save_pretrained(source)
    before = json.loads((source / "config.json").read_text())
    run(tapegrad, "finetune", "--model", source, "--data", text, "--out", folder / "adapter", "--window", 64,
        "--batch", 4, "--max-steps", 40, "--lr", "3e-3", "--rank", 8, "--targets", "*.attn.*", "*.mlp.*")
    run(tapegrad, "merge", "--model", source, "--adapter", folder / "adapter", "--out", folder / "merged")
    run(tapegrad, "export", "--model", source, "--adapter", folder / "adapter", "--out", folder / "exported")
    check(json.loads((folder / "merged/config.json").read_text()) == before, "finetuned: config.json changed")
    line = "KING:\nWhat say you now, my lords? 漢字 🙂\n"
    ids = AutoTokenizer.from_pretrained(folder / "merged")(line)["input_ids"]
    write_ids(folder / "ids.bin", ids)
    for of, flags in (("merged", []), ("exported", []), ("from", ["--adapter", folder / "adapter"])):
        run(tapegrad, "eval", "--model", folder / of, *flags, "--data", folder / "ids.bin", "--logits",
            folder / f"{of}.safetensors")
    ours = load_file(folder / "merged.safetensors")
    check(ours["tokens"][0].tolist() == ids[:-1], "finetuned: other tokens")
    for of in ("merged", "exported"):
        model = load(folder / of)
        with torch.no_grad():
            error = distance(load_file(folder / f"{of}.safetensors")["logits"], model(torch.tensor([ids[:-1]])).logits)
        check(error <= 2e-5, f"finetuned, {of}: logits differ by {error}")
    apart = distance(load_file(folder / "from.safetensors")["logits"], ours["logits"])
    check(apart <= 2e-5, f"finetuned: merging changes the logits by {apart}")
    with torch.no_grad():
        moved = distance(load(source)(torch.tensor([ids[:-1]])).logits, ours["logits"])
    check(moved > 1e-2, "finetuned: nothing was learned")
    print(f"  llama with {len(fast)} tokens: finetuned, merged, exported: logits of transformers to {error:.1e}")


def ended(tapegrad, at):
    """Texts and replies end at the same token here, in transformers and llama.cpp."""
    tg = lambda words: run(tapegrad, *words.replace("@", f"{at}/").split())
    (at / "text").write_text("Ada had a cat. Ada had a dog. <|endoftext|> Bob had a cat.\n" * 300)
    (at / "t.jsonl").write_text('{"instruction": "Ada?", "output": "had a cat."}\n' * 64)
    fast = "--max-steps 100 --warmup 4 --lr 0.02 --quiet"
    tg("tokenizer --train @text --vocab 275 --out @tokens --special <|endoftext|> <|im_start|> <|im_end|>")
    tg(f"train --data @text --tokenizer @tokens --special parse {' '.join(LLAMA[:6])} --layers 1 --heads 2 --width 32 "
       f"--context 64 {fast} --out @run"), tg("export --model @run --out @hf")
    ask, tell = "<|im_start|>user\nAda?<|im_end|>\n<|im_start|>assistant\n", "Ada had a dog."
    for name, text, end in ("run", tell, 0), ("hf", tell, 0), ("chat-run", ask, 2), ("chat-hf", ask, 2):
        if end:
            tg(f"finetune --model @{name[5:]} --data @t.jsonl --chat-format chatml --targets * {fast} --out @a{name}")
            tg(f"merge --model @{name[5:]} --adapter @a{name} --out @{name}")
        ids = AutoTokenizer.from_pretrained(at / "hf")(text)["input_ids"]
        words = f"--prompt-ids {','.join(map(str, ids))} --temperature 0 --max-tokens 16 --out -"
        ours = json.loads(tg(f"generate --model @{name} {words}"))["tokens"]
        tg(f"export --model @{name} --out @hf-{name}"), tg(f"export --model @{name} --to gguf --out @{name}.gguf")
        theirs = load(at / f"hf-{name}").generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0]
        cpp = llama_cpp.continued(llama_cpp.server(at / f"{name}.gguf"), ids, 16, ignore_eos=False)[0]
        check(ours[-1] == end and ids + ours == theirs.tolist() and ours == cpp, f"{name}: {ours}, {theirs}, {cpp}")


def config_keys():
    """config_keys.json has all keys that transformers reads."""
    read = r"\bconfig\.([a-z_]\w*)(?!\w*\()|(?:rope_parameters(?:\.get\(|\[)|getattr\(\s*[\w.]*config,\s*)[\"'](\w+)"
    kinds = (f"models/{c.model_type}/modeling_*.py" for c in CASES.values())
    table = pathlib.Path(__file__).resolve().parents[1] / "data/config_keys.json"
    for path in ["m*_utils.py", "cache_utils.py", "integrations/*attention*.py", *kinds]:
        sources = pathlib.Path(transformers.__file__).parent.glob(path)
        for key in re.findall(read, "".join(f.read_text() for f in sources)):
            check(f'"{"".join(key)}"' in table.read_text(), f"{key} of {path} is not in tests/data/config_keys.json")


def main():
    parser = arguments_of(__doc__)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="a tokenizer.json of up to 65 533 ids")
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "tests/data/prose.txt")
    arguments = parser.parse_args()
    tapegrad = arguments.tapegrad.resolve()
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name, config in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            published(tapegrad, name, config, pathlib.Path(folder))
    for name, flags in TRAINED.items():
        with tempfile.TemporaryDirectory() as folder:
            trained(tapegrad, name, flags, pathlib.Path(folder), ROOT / "tests/data/prose.txt")
    with tempfile.TemporaryDirectory() as folder:
        ended(tapegrad, pathlib.Path(folder))
    config_keys()
    if arguments.tokenizer:
        with tempfile.TemporaryDirectory() as folder:
            finetuned(tapegrad, arguments.tokenizer, arguments.text, pathlib.Path(folder))
    else:
        print("  skipped: finetuning with a tokenizer of the world; name one by --tokenizer")
    print("all is well")


if __name__ == "__main__":
    main()
