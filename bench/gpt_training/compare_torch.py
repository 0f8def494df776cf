#!/usr/bin/env python3
"""Whole training steps of GPTs: bench_step and PyTorch, alternating.

A step is forward, backward, the global gradient norm with clipping at 1, and AdamW, on random tokens. --dtype bf16 is
bf16 over f32 parameters, autocast in PyTorch. Name the runs for a GPU: cs336_2.7b, document 003's model, with ways
without foreach, which takes more memory, and gpt2_64x1024, GPT-2 124M with llm.c's batch.
"""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
import torch_gpt
from torch_peer import PRECISIONS, Peer, both_modes, median_of_steps, one_of, parse, table, words
from train_runs import FOR_A_GPU, RUNS, settings_of, step_of

WAYS = ("eager fused", "eager foreach", "compile fused")  # model mode and AdamW of PyTorch
BY_BLOCK = "blocks fused"  # each block compiled: one compilation serves all
BIG = "cs336_2.7b"
SIZES = {**RUNS, **FOR_A_GPU}


def gpt(torch, run, layers):
    if run == BIG:
        return torch_gpt.gpt(torch, layers or 32, 32, 2560, 10000, 512, rms=True, tied=False, hidden=10240)
    blocks, heads, width, vocabulary, bias, dropout, _, context = SIZES[run]
    return torch_gpt.gpt(torch, blocks, heads, width, vocabulary, context, bias, dropout)


def ways_of(torch, run, args):
    """The ways of a run: functions that measure the median seconds of synchronised steps."""
    torch.manual_seed(1)
    vocabulary, batch, context = (10000, 4, 512) if run == BIG else (SIZES[run][3], *SIZES[run][6:])
    tokens, targets = (torch.randint(vocabulary, (batch, context), device=args.device) for _ in range(2))
    with torch.device(args.device):
        model = gpt(torch, run, args.layers)
    compiled = torch.compile(model) if any(way.startswith("compile") for way in args.ways) else None
    blocks = [torch.compile(block) for block in model.h] if BY_BLOCK in args.ways else None

    def measured(way):
        function = compiled if way.startswith("compile") else model
        step = step_of(torch, args, model, lambda: function(tokens, targets, blocks if way == BY_BLOCK else None),
                       way.split()[1])
        return median_of_steps(args, step)

    return {way: (lambda way=way: measured(way)) for way in args.ways}


def flags_of(args, run):
    """The flags of bench_step."""
    of_run = {"arch": "cs336-2.7b", "batch": 4, "dtype": args.dtype, "matmul-precision": args.matmul_precision}
    if args.layers:
        of_run["layers"] = args.layers
    flags = {**(of_run if run == BIG else settings_of(args, run)), "steps": args.steps, "untimed": args.warmup}
    return [word for k, v in flags.items() for word in (f"--{k}", v)]


def main():
    args, error = parse(__doc__, "bench_step", ways_of, steps=(3, 10), runs=words((*SIZES, BIG), RUNS),
                        ways=words((*WAYS, BY_BLOCK), WAYS), dtype=one_of("f32", "bf16"),
                        layers={"type": int, "default": 0, "help": f"blocks of {BIG}, 0: all 32"},
                        matmul_precision=one_of(*PRECISIONS))
    if args.cpu_time:
        error("steps take wall time alone: leave --cpu-time out")
    table(args, both_modes(args, {run: run for run in args.runs}, lambda run: flags_of(args, run),
                           lambda report, _: report["median"], [Peer(args)]),
          threads=args.threads, steps=args.steps, dtype=args.dtype, matmul_precision=args.matmul_precision)


if __name__ == "__main__":
    main()
