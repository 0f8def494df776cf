"""Model folders of Hugging Face, both ways, against transformers itself. Run by hand, with 4.57.6 and with 5.23.0:

    python tests/clients/hf.py [--tapegrad build/release/bin/tapegrad]

needs torch and transformers. Each family's random model goes through `tapegrad export` and must load without a missing,
unexpected or mismatched key, with the same weights bit for bit and the same logits. A model that tapegrad trained must
load in the same way after `tapegrad export`, and make the same greedy tokens as `tapegrad generate`. Ends with status 1
at the first difference.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

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


def check(ok, what):
    if not ok:
        sys.exit(f"failed: {what}")


def load(folder, **options):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        check(not info.get(key), f"{folder}: {key} {info.get(key)}")
    return model.eval()


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True)
    check(done.returncode == 0, f"{words}: {done.stderr.decode(errors='replace')}")
    return done.stdout


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--tapegrad", type=pathlib.Path, default=root / "build/release/bin/tapegrad")
    tapegrad = parser.parse_args().tapegrad.resolve()
    torch.set_num_threads(1)
    print("torch", torch.__version__, "transformers", transformers.__version__)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name, config in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            published(tapegrad, name, config, pathlib.Path(folder))
    for name, flags in TRAINED.items():
        with tempfile.TemporaryDirectory() as folder:
            trained(tapegrad, name, flags, pathlib.Path(folder), root / "tests/data/prose.txt")
    print("all is well")


if __name__ == "__main__":
    main()
