"""A model goes round: trained here, finetuned by peft, further here and in blocks, run by llama.cpp.

    python tests/clients/demonstration.py [--tapegrad build/release/bin/tapegrad] [--out DIR]

needs torch, transformers, peft, xllamacpp and tensorboard. models/use_anywhere.md describes the steps. In each program,
64 greedy tokens must be the same as here, and TensorBoard must show both runs. Ends with status 1 at the first
difference; under five minutes on two cores.
"""

import pathlib
import tempfile
import time

import torch
import transformers
from llama_cpp import continued, server
from peft import LoraConfig, PeftModel, get_peft_model
from programs import ROOT, arguments_of, check, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

COUNT = 64
PROMPT = "The "
RUN = ["--batch", 16, "--lr", 3e-3, "--warmup", 10, "--progress", "none"]
LLAMA = ["--positions", "rope", "--norm", "rms_norm", "--activation", "swiglu", "--kv-heads", 2, "--layers", 4,
         "--heads", 4, "--width", 128, "--ff-width", 352, "--context", 128]


def greedy_here(tapegrad, *of):
    return run(tapegrad, "generate", *of, "--prompt", PROMPT, "--temperature", 0, "--max-tokens", COUNT)[:-1]


def greedy_there(model):
    """By transformers, of a model of bytes."""
    prompt = torch.tensor([list(PROMPT.encode())])
    ids = model.generate(input_ids=prompt, max_new_tokens=COUNT, do_sample=False, pad_token_id=0)
    return bytes(ids[0].tolist())


def greedy_llama_cpp(path, adapter=None):
    at = server(path, context=len(PROMPT) + COUNT + 1, adapter=adapter)
    return PROMPT.encode() + bytes(continued(at, list(PROMPT.encode()), COUNT)[0])


def train_in_peft(base, text, folder, steps=20, length=128, batch=8):
    """A few steps of AdamW on windows of the text."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    data = torch.tensor(list(text))
    for _ in range(steps):
        begins = torch.randint(0, len(data) - length, (batch,))
        windows = torch.stack([data[b:b + length] for b in begins])
        loss = model(input_ids=windows, labels=windows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return loss.item()


def shown(logs):
    seen = EventAccumulator(str(logs))
    seen.Reload()
    return [e.step for e in seen.Scalars("loss/train")]


def go_round(tapegrad, out, text):
    begin = time.monotonic()

    def say(what):
        print(f"  {time.monotonic() - begin:5.1f} s  {what}", flush=True)

    plain, loud = out / "plain.txt", out / "loud.txt"
    plain.write_bytes(text)
    loud.write_bytes(text.replace(b"e", b"E"))
    run(tapegrad, "train", "--data", plain, *LLAMA, *RUN, "--max-steps", 300, "--out", out / "run", "--tensorboard",
        out / "logs/run")
    base = greedy_here(tapegrad, "--model", out / "run")
    say(f"trained a llama of bytes: {base!r}")

    run(tapegrad, "export", "--model", out / "run", "--to", "hf", "--out", out / "published")
    model = transformers.AutoModelForCausalLM.from_pretrained(out / "published")
    check(greedy_there(model) == base, "transformers continues in another way")
    say(f"transformers: the same {COUNT} tokens")

    loss = train_in_peft(out / "published", loud.read_bytes(), out / "theirs")
    adapted = greedy_here(tapegrad, "--model", out / "published", "--adapter", out / "theirs")
    check(greedy_there(PeftModel.from_pretrained(model, out / "theirs")) == adapted, "peft continues in another way")
    check(adapted != base, "the adapter changes nothing")
    say(f"peft trained an adapter to a loss of {loss:.2f}: the same {COUNT} tokens there and here")

    run(tapegrad, "finetune", "--model", out / "published", "--adapter", out / "theirs", "--data", loud, *RUN,
        "--max-steps", 60, "--out", out / "letters", "--tensorboard", out / "logs/letters")
    words = ["--model", out / "published", "--adapter", out / "letters"]
    further = greedy_here(tapegrad, *words)
    again = PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(out / "published"),
                                      out / "letters")
    check(greedy_there(again) == further, "peft continues the adapter of this program in another way")
    say(f"trained further here, and loaded by peft: {further!r}")

    run(tapegrad, "merge", *words, "--out", out / "merged")
    check(greedy_here(tapegrad, "--model", out / "merged") == further, "merging changes the tokens")
    run(tapegrad, "export", "--model", out / "merged", "--to", "gguf", "--out", out / "merged.gguf")
    check(greedy_llama_cpp(out / "merged.gguf") == further, "llama.cpp continues in another way")
    say(f"merged, exported to GGUF: llama.cpp makes the same {COUNT} tokens")
    run(tapegrad, "export", "--model", out / "published", "--to", "gguf", "--out", out / "base.gguf")
    run(tapegrad, "export", "--adapter", out / "letters", "--to", "gguf", "--out", out / "letters.gguf")
    check(greedy_llama_cpp(out / "base.gguf", out / "letters.gguf") == further, "llama.cpp adapts in another way")
    say("the adapter alone as GGUF: the same tokens over the base")

    blocks, whole = out / "q8_0.gguf", out / "dequantized"
    run(tapegrad, "export", "--model", out / "published", "--to", "gguf", "--dtype", "q8_0", "--out", blocks)
    run(tapegrad, "finetune", "--model", blocks, "--data", loud, *RUN, "--targets", "*", "--max-steps", 60, "--out",
        out / "over_blocks")
    adapted = greedy_here(tapegrad, "--model", blocks, "--adapter", out / "over_blocks")
    check(adapted != greedy_here(tapegrad, "--model", blocks), "the adapter over blocks changes nothing")
    run(tapegrad, "export", "--model", blocks, "--dtype", "f32", "--to", "hf", "--out", whole)
    model = transformers.AutoModelForCausalLM.from_pretrained(whole)
    check(greedy_there(PeftModel.from_pretrained(model, out / "over_blocks")) == adapted, "peft differs over blocks")
    run(tapegrad, "export", "--model", whole, "--to", "gguf", "--out", out / "dequantized.gguf")
    run(tapegrad, "export", "--adapter", out / "over_blocks", "--to", "gguf", "--out", out / "over_blocks.gguf")
    theirs = greedy_llama_cpp(out / "dequantized.gguf", out / "over_blocks.gguf")
    check(theirs == adapted, "llama.cpp differs over dequantized blocks")
    say(f"finetuned over a GGUF file in q8_0: the same tokens by peft and llama.cpp: {adapted!r}")

    for name, steps in (("run", 300), ("letters", 60)):
        check(shown(out / "logs" / name) == list(range(1, steps + 1)), f"TensorBoard shows other steps of {name}")
    run(tapegrad, "plot", out / "run", out / "letters", "--out", out / "loss.html")
    say("TensorBoard shows both runs, and plot draws them")


def main():
    parser = arguments_of(__doc__)
    parser.add_argument("--out", type=pathlib.Path, help="keeps the files in this new folder")
    o = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    text = (ROOT / "tests/data/prose.txt").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        out = o.out or pathlib.Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        go_round(o.tapegrad.resolve(), out, text)


if __name__ == "__main__":
    main()
