#!/usr/bin/env python3
"""Compares tokens and targets of instruction data with trl; chats.py compares chat templates with transformers.

    pip install torch==2.15.0 transformers==5.24.0 trl==1.16.0
    python tests/clients/masks.py --program build/release/bin/encode_examples [--lines 1000]

Two byte-level tokenizers are made: with GPT-2's pattern and LLaMA-3's. For conversations, lists of prompt and
completion, texts of both, and plain texts, SFTTrainer's `input_ids` and `labels` must be the tokens and targets of
`encode_examples`, with the templates that `--jinja` prints and {% generation %}, and for llama3 also with trl's.
"""
import argparse
import json
import pathlib
import random
import re
import tempfile

import trl
from chats import content
from datasets import Dataset
from peers import GPT2, LLAMA3, trained
from programs import check, run
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MARKERS = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           "</s>"]
CONTEXT = 500


def tokenizer_of(pattern, folder):
    t = trained(pattern, 600, MARKERS)
    folder.mkdir()
    t.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<|begin_of_text|>", "eos_token": "</s>", "pad_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=t, **named)


def conversation(draw, turns):
    talk = [{"role": "system", "content": content(draw)}] if draw.random() < 0.4 else []
    for _ in range(turns):
        talk += [{"role": r, "content": content(draw)} for r in ("user", "assistant")]
    return talk


def tagged(template):
    """With {% generation %} around the replies."""
    parts = re.split(r" \+ m\['content'\] \+ '(<\|\w+\|>)", template)
    reply = "{{ m['content'] + '" + parts[1] + "' }}"
    return (f"{parts[0]} }}}}{{% if m['role'] == 'assistant' %}}{{% generation %}}{reply}{{% endgeneration %}}"
            f"{{% else %}}{reply}{{% endif %}}{{{{ '{parts[2]}")  # fmt: skip


def ours(program, folder, name, lines, context=CONTEXT):
    (folder / "lines.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    out = run(program, folder, name, folder / "lines.jsonl", context, "</s>").decode()
    return [json.loads(line) for line in out.splitlines()]


def of_trl(tokenizer, template, lines):
    tokenizer.chat_template = template
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8,
                                         num_hidden_layers=1, num_attention_heads=1))  # fmt: skip
    chat = any("messages" in line or isinstance(line.get("prompt"), list) for line in lines)
    with tempfile.TemporaryDirectory() as out:
        config = trl.SFTConfig(output_dir=out, max_length=CONTEXT + 1, assistant_only_loss=chat, report_to="none",
                               use_cpu=True, bf16=False)  # fmt: skip
        made = trl.SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(lines),
                              processing_class=tokenizer)  # fmt: skip
    return [{"tokens": row["input_ids"], "targets": row["labels"]} for row in made.train_dataset]


def compare(what, lines, found, expected):
    check(len(found) == len(expected), f"{what}: {len(found)} examples, not {len(expected)}")
    wrong = [(f, e) for f, e in zip(found, expected, strict=True) if f != e]
    check(not wrong, f"{what}: {len(wrong)} of {len(found)} differ, the first is {wrong[:1]}")
    cut = sum(len(e["tokens"]) == CONTEXT + 1 for e in found)
    print(f"  {what}: {len(found)} examples of {len(lines)} lines are equal, {cut} of them cut", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="encode_examples, which the build makes")
    parser.add_argument("--lines", type=int, default=1000)
    o = parser.parse_args()
    draw = random.Random(1)
    talks = [{"messages": conversation(draw, draw.randint(1, 4))} for _ in range(o.lines)]
    split = [{"prompt": t["messages"][:-1], "completion": t["messages"][-1:]} for t in talks]
    texts = [{"prompt": content(draw), "completion": " " + content(draw)} for _ in range(o.lines)]
    plain = [{"text": content(draw)} for _ in range(o.lines)]
    jinja = {f: run(o.program, "--jinja", f).decode() for f in ("chatml", "llama3", "qwen")}
    with tempfile.TemporaryDirectory() as scratch:
        for pattern in (GPT2, LLAMA3):
            folder = pathlib.Path(scratch, "gpt2" if pattern == GPT2 else "llama3")
            tokenizer = tokenizer_of(pattern, folder)
            print(f"pattern of {folder.name}")
            templates = [("chatml", tagged(jinja["chatml"])), ("llama3", tagged(jinja["llama3"])),
                         ("llama3", trl.chat_template_utils.llama3_training_chat_template)]  # fmt: skip
            for name, template in templates:
                for kind, lines in (("messages", talks), ("prompt and completion", split)):
                    compare(f"{name}, {kind}", lines, ours(o.program, folder, name, lines),
                            of_trl(tokenizer, template, lines))  # fmt: skip
            for kind, lines in (("texts of prompt and completion", texts), ("plain texts", plain)):
                compare(kind, lines, ours(o.program, folder, "plain", lines), of_trl(tokenizer, None, lines))
            qwen = trl.chat_template_utils.qwen2_5_training_chat_template
            for t in talks[:100]:
                both = [tokenizer.apply_chat_template(t["messages"], chat_template=c, tokenize=False,
                                                      add_generation_prompt=True)
                        for c in (qwen, jinja["qwen"])]  # fmt: skip
                check(both[0] == both[1], "qwen is not Qwen2.5's text")
    print("tokens and targets are those of trl")


if __name__ == "__main__":
    main()
