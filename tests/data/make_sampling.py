#!/usr/bin/env python3
"""Writes sampling.json in this folder: what transformers makes of logits, for tests/models/test_sample.cpp.

    pip install torch transformers==5.23.0
    python tests/data/make_sampling.py

For each case: options, logits (V), the tokens before, and the probabilities (V) after LogitsProcessors in the order of
generate(). It has no processor of frequencies and presence: these follow OpenAI's formula, with the window of the
repetition penalty.
"""
import json
import pathlib

import torch
from transformers.generation import logits_process as process

V = 24
CASES = [
    {},
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7, "penalty_last": 3},
    {"repetition_penalty": 1.2, "penalty_last": 0},
    {"frequency_penalty": 0.4},
    {"presence_penalty": -0.6, "penalty_last": 5},
    {"temperature": 1.4, "top_k": 12, "top_p": 0.85, "min_p": 0.12},
    {"temperature": 0.6, "top_k": 9, "top_p": 0.97, "min_p": 0.05, "repetition_penalty": 1.5, "frequency_penalty": 0.2,
     "presence_penalty": 0.3},
    {"temperature": 2.5, "top_p": 0.6, "repetition_penalty": 1.1, "frequency_penalty": -0.3, "penalty_last": 4},
]  # fmt: skip


def probabilities(o, logits, before):
    last = o.get("penalty_last", 64)
    ids = before[None, -last:] if last else before[None]
    x = process.RepetitionPenaltyLogitsProcessor(o.get("repetition_penalty", 1.0))(ids, logits[None])
    times = torch.bincount(ids[0], minlength=V)
    x = x - times * o.get("frequency_penalty", 0.0) - (times > 0) * o.get("presence_penalty", 0.0)
    for key, make in (("temperature", process.TemperatureLogitsWarper), ("top_k", process.TopKLogitsWarper),
                      ("top_p", process.TopPLogitsWarper), ("min_p", process.MinPLogitsWarper)):  # fmt: skip
        if key in o:
            x = make(o[key])(ids, x)
    return torch.softmax(x[0], 0)


def main():
    draw = torch.Generator().manual_seed(5)
    cases = []
    for o in CASES:
        logits = (torch.randn(V, generator=draw) * 2).to(torch.bfloat16).float()  # short in text
        before = torch.randint(0, 6, (100,), generator=draw) + torch.arange(100) // 6  # the first ones come no more
        cases.append({"options": o, "logits": logits.tolist(), "before": before.tolist(),
                      "probabilities": [float(f"{p:.7g}") for p in probabilities(o, logits, before)]})  # fmt: skip
    lines = ",\n".join(json.dumps(c) for c in cases)
    path = pathlib.Path(__file__).resolve().parent / "sampling.json"
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
