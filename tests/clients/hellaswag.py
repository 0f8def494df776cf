"""`tapegrad eval --task` on 500 generated items, against the same sums by transformers.

    python tests/clients/hellaswag.py [--tapegrad build/release/bin/tapegrad] [--threads 2]

needs torch and transformers. A GPT-2 with random weights and a byte-level tokenizer scores items as
dev/data/hellaswag.py of llm.c does: an item is a batch of its endings, padded by zeros at the right, and the losses of
an ending's tokens are summed. The JSON lines and llm.c's binary file must give the same sums, to 1e-5 of each,
and the same picks by sum and by mean. Ends with status 1 at the first difference.
"""

import json
import pathlib
import random
import struct
import tempfile
import time

import tokenizers
import torch
from programs import arguments_of, check, run
from transformers import GPT2Config, GPT2LMHeadModel

ITEMS, WORDS = 500, ["a", "man", "is", "sitting", "on", "the", "roof", "he", "starts", "pulling", "up", "tiles", "off",
                     "rips", "level", "it", "and", "holds", "cube", "water", "slowly", "then", "waves", "'s", "new."]


def text(lengths):
    return " ".join(random.choices(WORDS, k=random.randint(*lengths)))


def write_binary(path, items):
    """256 numbers of 4 bytes, then per item: 65535, its bytes, index, label, endings, and counted ids."""
    stream, longest = [], 0
    for i, (context, endings, label) in enumerate(items):
        ids = [n for some in (context, *endings) for n in (len(some), *some)]
        longest = max(longest, 2 * (5 + len(ids)))
        stream += [65535, 2 * (5 + len(ids)), i, label, len(endings), *ids]
    path.write_bytes(struct.pack("<256i", 20240522, 1, len(items), longest, *[0] * 252) +
                     struct.pack(f"<{len(stream)}H", *stream))


def sums_of(model, context, endings):
    rows = [context + e for e in endings]
    width = max(map(len, rows))
    tokens = torch.tensor([r + [0] * (width - len(r)) for r in rows])
    mask = torch.tensor([[0.0] * len(context) + [1.0] * len(e) + [0.0] * (width - len(context) - len(e))
                         for e in endings])
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    sums = (losses.view(len(rows), -1) * mask[:, 1:].to(losses.dtype)).sum(1)
    return -sums, -sums / mask[:, 1:].sum(1)


def main():
    parser = arguments_of(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    tapegrad = arguments.tapegrad.resolve()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1), random.seed(1)
    lines = [{"ind": i, "activity_label": "Roof", "ctx": text((5, 40)), "split": "val", "label": random.randrange(4),
              "endings": [text((1, 20)) for _ in range(4)]} for i in range(ITEMS)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
        bpe.pre_tokenizer, bpe.decoder = level, tokenizers.decoders.ByteLevel()
        bpe.train_from_iterator([x["ctx"] for x in lines], tokenizers.trainers.BpeTrainer(
            vocab_size=320, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        model = GPT2LMHeadModel(GPT2Config(vocab_size=320, n_positions=256, n_embd=256, n_layer=4, n_head=4,
                                           bos_token_id=None, eos_token_id=None)).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.05)
        model.save_pretrained(folder / "model")
        bpe.save(str(folder / "model/tokenizer.json"))
        items = [(bpe.encode(x["ctx"]).ids, [bpe.encode(" " + e).ids for e in x["endings"]], x["label"]) for x in lines]
        (folder / "task.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        write_binary(folder / "task.bin", items)
        begin = time.perf_counter()
        theirs = [sums_of(model, context, endings) for context, endings, _ in items]
        their_ms = 1000 * (time.perf_counter() - begin) / ITEMS
        model.double()
        exact = torch.stack([sums_of(model, context, endings)[0] for context, endings, _ in items])
        for task in "task.jsonl", "task.bin":
            run(tapegrad, "eval", "--model", folder / "model", "--task", folder / task, "--batch", 32, "--threads",
                arguments.threads, "--json", folder / "report.json")
            report = json.loads((folder / "report.json").read_text())
            ours = torch.tensor([x["sums"] for x in report["items"]], dtype=torch.float64)
            error = [((sums.double() - exact) / exact).abs().max().item()
                     for sums in (ours, torch.stack([s for s, _ in theirs]))]
            check(error[0] <= 1e-5, f"{task}: sums differ by {error[0]}")
            for key, values in ("pick", [s for s, _ in theirs]), ("pick_norm", [m for _, m in theirs]):
                picks = [v.argmax().item() for v in values]
                check([x[key] for x in report["items"]] == picks, f"{task}: {key}")
                acc = sum(p == label for p, (_, _, label) in zip(picks, items)) / ITEMS
                check(report["acc" + key[4:]] == acc, f"{task}: acc{key[4:]}")
            print(f"{task}: sums to {error[0]:.1e} (transformers in f32: {error[1]:.1e}), all picks; "
                  f"{report['ms'] / ITEMS:.2f} ms an item, transformers {their_ms:.2f}")


main()
