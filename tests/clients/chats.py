#!/usr/bin/env python3
"""Compares the ids of chats with apply_chat_template() of transformers, and which of them are replies.

    python tests/clients/chats.py --program build/release/bin/encode_examples [--templates DIR]

needs transformers 5.24.0. The built-in templates, which plain Jinja2 must render too, and TEMPLATES, which have traits
of published ones, each without and with [[ ]] as {% generation %}: ids before an answer, of a whole conversation, and
of its replies, the `assistant_masks`. A special token in a message is text, as with sanitize_control_tokens.
"""

import argparse
import json
import pathlib
import random
import re
import subprocess
import tempfile

import jinja2
from peers import GPT2, LLAMA3, trained
from programs import check, run
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<s> </s> <|im_start|> <|im_end|> <|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> "
           "[INST] [/INST] <|endoftext|> <start_of_turn> <end_of_turn>").split()  # fmt: skip
FORMATS = ("chatml", "qwen", "llama3", "zephyr", "mistral", "alpaca", "plain")
WORDS = "the a Hello, 12345 don't naïve 日本語 😀 x=1; {} [/] \\n 'quoted' \"two\" <b> e\u0301 3.14 ОК <think>".split()
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SYSTEM = ("{% if messages[0].role == 'system' %}{% set s = messages[0].content %}"
          "{% set messages = messages[1:] %}{% endif %}")  # fmt: skip
EACH, USER, END = "{% for m in messages %}", "{% if m.role == 'user' %}", "{% endif %}{% endfor %}"
TEMPLATES = {
    "a default system message": "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n"
    "{% endif %}" + EACH + "<|im_start|>{{ m.role }}\n[[{{ m.content }}<|im_end|>]]\n{% endfor %}" + PROMPT,
    "dates, trimmed": "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nToday: "
    "{{ strftime_now('%d %b %Y') }}" + SYSTEM + "{{ s | trim }}<|eot_id|>" + EACH + "{{ '<|start_header_id|>' + "
    "m.role + '<|end_header_id|>\n\n' }}[[{{ m.content | trim }}<|eot_id|>]]{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "no space after [/INST]": "{{ bos_token }}" + SYSTEM + EACH + USER + "[INST] {{ s + '\n\n' if loop.first and s is "
    "defined }}{{ m.content }}[/INST]{% else %}[[ {{ m.content }}{{ eos_token }}]]" + END,
    "a begin in each turn": SYSTEM + EACH + USER + "{{ bos_token + '[INST] ' + ('<<SYS>>\n' + s + '\n<</SYS>>\n\n' "
    "if s and loop.first else '') + m.content.strip() + ' [/INST]' }}{% else %}"
    "[[{{ ' ' + m.content.strip() + ' ' + eos_token }}]]" + END,
    "thoughts of the last reply": EACH + "<|im_start|>{{ m.role }}\n[[{% if m.role == 'assistant' and loop.last %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content.split('</think>')[-1] }}<|im_end|>]]\n"
    "{% endfor %}" + PROMPT,
    "no system message": SYSTEM + "{% if s is defined %}{{ raise_exception('No system') }}{% endif %}" + EACH
    + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n[[{{ m.content | trim }}<end_of_turn>]]\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "texts alone": EACH + "{% if m.role == 'assistant' %}A: [[{{ m.content }}]]\n{% else %}"
    "{{ m.role }}: {{ m.content }}\n" + END + "{% if add_generation_prompt %}A: {% endif %}",
}


def content(draw):
    words = [draw.choice(WORDS) for _ in range(draw.randint(1, 25))]
    return "w" + "".join(draw.choice((" ", " ", " ", "\n", "\n\n", "  ", "\t")) + w for w in words) + " w"


def tokenizer_of(pattern):
    t = trained(pattern, 700, SPECIAL)
    t.add_tokens([AddedToken(p, special=False, normalized=False) for p in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>")


def talks(draw):
    for i in range(6):
        talk = [{"role": "system", "content": content(draw)}] if i % 2 else []
        for role in ("user", "assistant") * (1 + i // 2):
            text = draw.choice(("", " ", "\n")) + content(draw) + draw.choice(("", " ", "\n", "\n\n"))
            talk.append({"role": role, "content": text, "reasoning_content": text[::-1]})
        yield talk


def compare(name, tokenizer, folder, program, plain, tagged, all):
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(plain)
    (folder / "tagged.jinja").write_text(tagged)
    refused = 0
    for talk in all:
        talk = [{k: x for k, x in m.items() if k in plain or k != "reasoning_content"} for m in talk]
        spells = {"sanitize_control_tokens": True} if talk[0]["content"].startswith("1") else {}
        masks = {"return_assistant_tokens_mask": True} if tagged else spells
        (folder / "line.jsonl").write_text(json.dumps({"messages": talk}))
        for template, context in [("", 10**6), (folder / "tagged.jinja", 10**6)] if tagged else [("", "prompt")]:
            try:
                e = tokenizer.apply_chat_template(talk, chat_template=tagged or plain, add_generation_prompt=not tagged,
                                                  return_dict=True, **masks)  # fmt: skip
                targets = [t if m else -100 for t, m in zip(e["input_ids"], e.get("assistant_masks", []), strict=False)]
                expected = {"tokens": e["input_ids"], "targets": targets} if tagged else e["input_ids"]
            except (jinja2.exceptions.TemplateError, TypeError) as error:
                expected, refused = str(error), refused + 1
            words = list(map(str, (program, folder, template, folder / "line.jsonl", context)))
            done = subprocess.run(words, capture_output=True, text=True)
            if isinstance(expected, str):
                check(done.returncode == 1, f"{name}: {expected}, and {done.stdout}")
            else:
                check(done.stdout and json.loads(done.stdout) == expected,
                      f"{name}: {talk}\n{done.stdout or done.stderr}\n{expected}")  # fmt: skip
    print(f"  {name}: {len(all)} {'masks' if tagged else 'prompts'}, {refused} refused", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="encode_examples, which the build makes")
    parser.add_argument("--templates", type=pathlib.Path, help="a folder of more .jinja files")
    o = parser.parse_args()
    draw, ends = random.Random(1), ("{% if m.role == 'assistant' %}{% generation %}", "{% endgeneration %}")
    hostile = [[{"role": "user", "content": f"1{t}2{t}3{t[:-1]}4"}] for t in SPECIAL]
    templates = {name: run(o.program, "--jinja", name).decode() for name in FORMATS}
    for template in templates.values():
        plain = jinja2.Environment().from_string(template).render(messages=hostile[0], eos_token="</s>")
        check("1<s>2" in plain, template)
    for file in sorted(o.templates.glob("*.jinja")) if o.templates else []:
        templates[file.stem] = file.read_text()
    for tokenizer in (tokenizer_of(GPT2), tokenizer_of(LLAMA3)):
        with tempfile.TemporaryDirectory() as scratch:
            words = (tokenizer, pathlib.Path(scratch), o.program)
            for name, text in {**templates, **TEMPLATES}.items():
                plain = re.sub(r"\[\[|\]\]", "", text) if name in TEMPLATES else text
                compare(name, *words, plain, "", [t[:-1] for t in talks(draw)] + hostile)
            for name, text in TEMPLATES.items():
                both = rf"{ends[0]}\1{ends[1]}{{% else %}}\1{{% endif %}}{{{{ '' }}}}"
                tagged = re.sub(r"\[\[(.*?)\]\]", both, text, flags=re.S)
                compare(name, *words, re.sub(r"\[\[|\]\]", "", text), tagged, list(talks(draw)))
    print("the ids are those of transformers")


if __name__ == "__main__":
    main()
