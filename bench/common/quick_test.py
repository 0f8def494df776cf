#!/usr/bin/env python3
"""Runs a benchmark at tiny sizes and checks what it prints and writes: quick_test.py NAME PROGRAM FOLDER [MORE...]

CASES[NAME] lists the steps, which run in FOLDER: arguments of check(), tuples of refuse(). Patterns are regular
expressions. MORE: the folder of `tapegrad` and mpirun's words for bench_comm, other programs for bench_cuda."""
import json, os, pathlib, re, shlex, shutil, subprocess, sys

at_least = lambda n: range(n, sys.maxsize)
need = lambda ok, what: ok or sys.exit(what)


def execute(args, program):
    words = PROGRAMS[program or NAME] + shlex.split(args)
    return subprocess.run(words, cwd=FOLDER, capture_output=True, encoding="utf-8", errors="replace")


def at(node, path):
    """Values at a path of keys: `a|b` is both keys, `*` each element of a list."""
    nodes = [node]
    for part in filter(None, path.split("/")):
        try:
            nodes = [n[int(key) if isinstance(n, list) else key] for n in nodes
                     for key in (range(len(n)) if part == "*" else part.split("|"))]
        except (KeyError, IndexError, TypeError, ValueError) as e:
            need(False, f"{path}: {part} is missing, {e!r}")
    need(nodes, f"{path} has no values")
    return nodes


def refuse(status, message, args, program=None):
    """The program must return `status`, and print `message` to stderr."""
    r = execute(args, program)
    need(r.returncode == status and re.search(message, r.stderr, re.S),
         f"{args}: status {r.returncode}, not {status} with '{message}': {r.stderr}")


def check(args=None, program=None, skip=None, prints=(), lacks=None, matches={}, file=None, keys=None, lengths={},
          positive=(), values={}, same=(), true={}, files={}):
    """Runs the program with `args`, which must succeed, then reads the JSON `file`.

    skip: an error that skips the test. prints, lacks: patterns. keys: of `file`, except the common ones. matches,
    lengths, files: pattern, path, glob -> number or range. positive: numbers and lists. values: path -> all, a set of
    some, or a pattern of each. same: paths, equal to an earlier step. true: name -> predicate."""
    text = ""
    if args is not None:
        r = execute(args, program)
        if skip and r.returncode and re.search(skip, r.stderr):
            sys.exit(print(f"skipped: {r.stderr}"))
        need(r.returncode == 0, f"{args}: status {r.returncode}\n{r.stdout}\n{r.stderr}")
        text = r.stdout
    for pattern in prints:
        need(re.search(pattern, text, re.S), f"'{pattern}' is not printed:\n{text}")
    need(not lacks or not re.search(lacks, text, re.S), f"'{lacks}' is printed:\n{text}")
    def count(what, got, want):
        need(got in want if isinstance(want, range) else got == want, f"{what}: {got}, not {want}\n{text}")
    for pattern, want in matches.items():
        count(f"matches of '{pattern}'", len(re.findall(pattern, text, re.S)), want)
    for pattern, want in files.items():
        count(pattern, len(list(FOLDER.glob(pattern))), want)
    if file is None:
        return
    text = (FOLDER / file).read_text(encoding="utf-8")
    hook = list if file.endswith(".jsonl") else dict
    text = f"[{','.join(text.splitlines())}]" if hook is list else text
    data = json.loads(text, object_pairs_hook=hook, parse_constant=lambda word: need(False, f"{file} has {word}"))
    if keys is not None:
        at(data, "|".join(["date", "commit", "command", *keys.split()]))
        at(data, "machine/cpu|cpus|threads|backend|compiler")
    for path, want in lengths.items():
        for value in at(data, path):
            count(f"members of {path}", len(value), want)
    for path in positive:
        need(all(x if isinstance(x, list) else type(x) in (int, float) and x > 0 for x in at(data, path)),
             f"{path} of {file}: {at(data, path)}")
    for path, want in values.items():
        got = at(data, path)
        ok = (want <= set(got) if isinstance(want, set) else got == want if isinstance(want, list)
              else all(re.fullmatch(want, str(value)) for value in got))
        need(ok, f"{path} of {file}: {got}, not {want}")
    for path in same:
        before = SEEN.setdefault((program, path), at(data, path))
        need(before == at(data, path), f"{path} of {file}: {at(data, path)}, before {before}")
    for name, predicate in true.items():
        need(predicate(data), f"{file}: not {name}")


CASES, MODES = {}, ("eager", "compiled")
DEVICE, ROOM = "is no device", "too little. .*These would fit: --batch [0-9]+ "

OPS = "linear layer_norm rms_norm add_layer_norm add_rms_norm softmax cross_entropy attention gelu".split()
ROWS = {*OPS, *(f"{op}_backward" for op in OPS),
        *"emit_eager emit_replay adamw_step add int8_linear quantize_rowwise quantize_both_ways".split()}
CASES["bench_ops"] = [
    dict(args="--quick --commit test --json ops.json --machine machine.json", file="ops.json", keys="",
         positive=["rows/*/p10|median|p90|seconds"], values={"rows/*/name": ROWS},
         true={"a peak": lambda r: all(row["unit"] == "ns" or row["peak"] > 0 < row["percent"] for row in r["rows"])}),
    dict(file="machine.json", positive=["gb_per_s|f32_tflops|bf16_tflops|int8_tflops"]),
    (1, "no row has 'no such row'", "--quick --filter 'no such row'"), (2, "quik", "--quik")]

CASES["bench_training"] = [  # the second run is compared with the first
    *(dict(args=f"--quick --mode {m} --against-document --commit test --json {m}.json --baseline {m}_baseline",
           prints=["Compared with document 000"], matches={"change:": n}, file=f"{m}.json", keys="device mode",
           lengths={"rows": 32}, positive=["rows/*/time/low|estimate|high", "rows/*/sample/iterations|seconds"],
           values={"rows/*/verdict": verdict})
      for m in MODES for n, verdict in ((0, "None"), (32, "no change|within noise|improved|regressed"))),
    (1, "no id has 'no such id'", "--quick --filter 'no such id'"), (1, DEVICE, "--quick --device abacus"),
    (2, "quik", "--quik"), (2, "fast", "--mode fast"), (2, "samples", "--samples 1"), (2, "target", "--target 0")]

RUNS = [f"tiny_{computation}_warmup_{warmup}_mixed_{mixed}"
        for computation in ("forward", "backward", "forward_backward") for warmup in (0, 1) for mixed in (False, True)]
LOGGED = ("Running profile for: ", r'Running profile with GPT config: \n[{]\n    "approximate": null',
          r'Profiler config: \n[{]\n    "computation": ', r'Profile result: \n[{]\n    "computation": ')
CASES["bench_gpt_timeit"] = [  # two runs share a model, which is logged once
    *(dict(args=f"--quick --steps 3 --mode {m} --against-document --commit test --json {m}.json",
           matches={f"[0-9-]+ [0-9:]+,[0-9]+ - bench_gpt_timeit - INFO - {line}": at_least(13) for line in LOGGED},
           prints=[r"\n +name +computation +times +mean_time", "Warm-up claim: ", "of 6 pairs", "Consistency: ",
                  "figures in document 004: 14[.]"],
           lacks="Compared with document", file=f"{m}.json", keys="device mode clock batch context vocab seed",
           lengths={"rows": 12, "standalone": 2, "rows/*/times": 3},
           values={"warmup_claim/pairs": [6], "rows/*/name": RUNS},  # compiled, a backward time is a difference
           positive=["rows/*/std_dev|peak_bytes|loss",
                     f"rows/{timed}/mean_time|median_time|min_time|max_time|total_time"])
      for m, timed in zip(MODES, ("*", "0|1|2|3|8|9|10|11"))),
    (1, "no run has 'no such run'", "--quick --filter 'no such run'"), (1, DEVICE, "--quick --device abacus"),
    (2, "--batch is -2", "--quick --batch -2"), (2, "--context is 0", "--quick --context 0"), (2, "quik", "--quik"),
    (2, "--steps is 0. It must be from 1 to 1000000", "--quick --steps 0"), (2, "steps", "--steps many"),
    (2, "--vocab is 1. It must be from 2", "--quick --vocab 1"), (2, "'true' is not known", "--quick --mixed true"),
    (2, "'foward' is not known", "--quick --computations foward"), (2, "'lazy' is not known", "--quick --mode lazy"),
    (1, "Did you mean 'medium'", "--sizes meduim"), (1, ROOM, "--sizes medium --batch 1000000 --matrix-only"),
    (1, "threads", "--quick --threads 100000"),
    (1, "", "--quick --matrix-only --computations forward --warmups 1 --check-warmup")]

STEP = "--arch nano --quick"
CASES["bench_step"] = [
    *(dict(args=f"{STEP} --mode {m} --commit test --json {m}.json", file=f"{m}.json",
           prints=[f"nano, [0-9]+ parameters, 1 x 2 x 16 tokens, {m}: median [0-9.]+ ms of 3 steps"],
           keys="arch device parameters median p10 p90 tokens_per_s peak_bytes", lengths={"seconds": 3}, same=["loss"],
           values={"run/train/batch": [2], path: [value]})
      for m, path, value in zip(MODES, ("compiled", "compiled/replays"), (None, 4))),
    dict(args=f"{STEP} --dtype bf16 --lora-rank 2 --mode compiled --json lora.json", file="lora.json", keys="trained",
         values={"trained": [1024]}),  # 2 (32 + 96) + 2 (32 + 32) + 4 (32 + 128)
    dict(args=f"{STEP} --lr 1e-6"),  # lr below the usual min_lr
    (2, "--steps is 0", "--steps 0"), (2, "Did you mean 'compiled'", f"{STEP} --mode compield"),
    (1, DEVICE, f"{STEP} --device abacus"), (1, "batch is 'many'", "--batch many"),
    (1, ROOM, "--arch gpt2 --batch 10000000"), (2, "Did you mean '--layers'", "--layer 3")]

CASES["bench_lm_profile"] = [
    dict(args="--quick --answers --against-document --commit test --json run.json --trace trace.json --csv csv",
         prints=["Model: tiny, Context Length: 8", "type=forward", "type=backward", "type=train", "Profiling complete",
                 "nvtx_sum", ":warmup", ":profiled_step", ":attention_sublayer", "cpu_kern_sum", r"\n1. ", r"\n9. ",
                 r"GFLOP/s, [0-9.]+ % of [0-9]+\n", "figures in document 003: 6[.]"],
         files={"csv/tiny_*.csv": at_least(18)},  # ranges, calls and kernels of six runs
         lacks="Ask for --answers|Compared with document", file="run.json", keys="device",
         lengths={"runs": 6}, positive=["runs/*/peak_bytes|tables", "runs/*/step/seconds|kernel_seconds"]),
    dict(file="trace.json", lengths={"traceEvents": at_least(101)}),
    dict(args="--quick --contexts 128,256 --json contexts.json", file="contexts.json", lengths={"runs": 6},
         prints=[r"\n8 +document ", r"\n16 +fused "], values={"runs/*/context_length": [8, 8, 8, 16, 16, 16]}),
    (1, "--contexts with --answers", "--quick --contexts 8 --answers"), (1, "'8' comes twice", "--contexts 8,8"),
    (1, "Did you mean 'small'", "--size smal"), (2, "--warmup is -1", "--quick --warmup -1"),
    (2, "--batch is 0. It must be from 1 to", "--quick --batch 0"),
    (2, "--context is 1. It must be from 2 to", "--quick --context 1"), (2, "--layers is -1", "--quick --layers -1"),
    (2, "'fusd' is not known", "--quick --form fusd"), (1, DEVICE, "--quick --device abacus"),
    (1, ROOM, "--size small --batch 100000"), (1, "no/such/folder", "--quick --trace /no/such/folder/trace.json"),
    (1, "no/such/folder", "--quick --json /no/such/folder/run.json"), (2, "quik", "--quik")]

CASES["bench_decode"] = [
    dict(args="--arch nano --batch 2 --prompt 3,9 --tokens 5 --rounds 2 --commit test --json run.json",
         prints=["nano, f32: 2 text.s., 5 tokens after a prompt of 3", "growing cache, eager +[0-9.]+ tokens/s",
                 "nano, bf16: 2 text.s., 5 tokens after a prompt of 9", "fixed cache, eager", "fixed cache, compiled"],
         file="run.json", keys="device", lengths={"decoding": 4, "decoding/*/ways": 3},
         positive=["decoding/*/ways/*/tokens_per_second"]),
    (2, "--tokens is 1", "--arch nano --tokens 1"), (1, "gpt9", "--arch gpt9"), (2, "quik", "--quik")]

KEYS = list(json.loads((pathlib.Path(__file__).parents[1] / "switchback/document.jsonl").read_text().splitlines()[0]))
PARTS, TIMES = KEYS[6:22], KEYS[6:]
CASES["bench_switchback"] = [
    *(dict(args=f"--quick --wm 2,3.1 --dtype {t} --against-document --commit test --json {t}.json --jsonl rows.jsonl",
           matches={fr"\ntime {part}: [0-9]+[.][0-9][0-9][0-9] ms\n": 4 for part in PARTS},
           prints=[f"; {t} [(]as asked for[)], 2 calls of each op after 1 untimed", r"row 2 of 4: 32 -> 16, batch 24\n",
                   r"\nTOTAL STANDARD ", r"\nTOTAL ROWWISE ", r"\nTOTAL GLOBAL ", r"\nspeedup -?[0-9]",
                   "rate w_quantize_global: +[0-9.]+ +GB/s", "memory_efficient +compiled ", "16 -> 50 +24 ",
                   "figures in document 001: 4[.]"],
           lacks="Compared with document", file=f"{t}.json", keys="device clock repeat untimed seed dtype why_dtype",
           lengths={"grid": 4, "grid/*/layers": 8, "grid/*/rates": 16},
           positive=["grid/*/" + "|".join([*TIMES, "best_speedup", "quantise_share", "peak_bytes"])])
      for t in ("f32", "bf16")),
    dict(file="rows.jsonl", lengths={"": 8, "*": 25}, true={  # the second run appends
        "numbers in the document's order": lambda rows: all(
            [key for key, _ in row] == KEYS and all(isinstance(x, (int, float)) for _, x in row) for row in rows)}),
    dict(args="--dims 1024 --batch 1024 --rows 0 --repeat 1 --parts-only --against-document",
         prints=["Compared with document 001", r"\n1024 -> 4096 +1024 .* 0[.]47 +0[.]41\n"], lacks="step of the layer"),
    dict(args="--quick --full --budget 1m --json budget.json", file="budget.json", lengths={"grid": 2, "left_out": 0},
         lacks="left out",
         prints=["2 rows take at least ", "global takes less time than standard in [0-2] of 2 rows "]),
    dict(args="--budget 0.01s", lacks="row 1 of", prints=["left out: 1024 -> 4096, batch 1024: one call would take "]),
    (1, "--repeat is 0", "--dims 32 --repeat 0"), (1, DEVICE, "--quick --device abacus"),
    (2, "--dtype is 'f16'.* It is one of auto, f32, bf16", "--quick --dtype f16"),
    (2, "Did you mean 'True'", "--quick --switch true"), (2, "--seed is '-1'", "--quick --seed -1"),
    (1, "--rows is 2", "--quick --rows 2"), (1, "--wm has 'wide'", "--quick --wm wide"),
    (1, ROOM, "--dims 8096 --batch 100000000"), (2, "quik", "--quik"), (2, "repeat", "--repeat many")]

CELLS = "--sizes 64,96 --batches 1,3 --fragments 2,8 --warmup 3 --steps 2"
CELL = "Benchmarking with input_size={0}, output_size={0}, batch_size={1}\n"
CASES["bench_fragmented"] = [
    *(dict(args=f"{CELLS} --run {m} --against-document --commit test --json {m}.json",
           matches={fr"\n  {line}\n": 40 for line in  # sizes, batches, steps, cells
                    ("Forward time: [0-9]+[.][0-9][0-9]ms", "Backward time: -?[0-9]+[.][0-9][0-9]ms",
                     "Peak memory: [0-9]+[.][0-9]MB", "Parameters: [0-9]+")},
           prints=["; f32, TF32 off, 2 timed steps after 3 untimed", fr"\nStep: folded, {m}\n{CELL.format(96, 3)}",
                   fr"\nStep: separate, {m}\n{CELL.format(64, 1)}\nDetailed Results:\nLinear Layer:\n  Forward time: ",
                   fr"\n64, batch 3, inference, 8 fragments +folded, {m} ",
                   *(fr"\nFragmentedLinear [(]{way}[)] Results:\n\nFragments: 2\n" for way in ("Train", "Inference"))],
           lacks="Compared with document", file=f"{m}.json", keys="device clock warmup steps seed dtype",
           lengths={"cells": 40}, same=["cells/*/first_loss|last_loss"],
           positive=["cells/*/forward_ms|live_bytes|reserved_bytes|parameters|first_loss|last_loss|document_bytes|"
                     "fair_bytes|stored_bytes|folded_bytes"]) for m in MODES),
    dict(args="--sizes 2048 --batches 1 --fragments 8 --modes linear,inference --step folded --warmup 1 --steps 1 "
              "--against-document", lacks="[(]Train[)]|separate",
         prints=["Compared with document 002", r"\n2048, batch 1, linear .* 0[.]12 +1[.]00 +96[.]3 ",
                 r"\n2048, batch 1, inference, 8 fragments .* 1[.]03 +1[.]22 +133[.]3 "]),
    (1, "--batches is 0", "--sizes 64 --batches 0"), (1, "--fragments is 0", "--sizes 64 --fragments 0"),
    (1, "--sizes 64 cannot be split into --fragments 7", "--sizes 64 --fragments 7"),
    (1, "--sizes is 16", "--sizes 16 --fragments 2"), (1, "--steps is 0", "--sizes 64 --fragments 2 --steps 0"),
    (1, "comes twice", "--sizes 64 --fragments 2 --batches 1,1"), (2, "Did you mean 'folded'", "--step fold"),
    (2, "Did you mean 'inference'", "--modes linear,inferrence"), (2, "'lazy' is not known", "--run lazy"),
    (2, "--seed is '-1'", "--seed -1"), (2, "--threads is -1", "--threads -1"), (1, DEVICE, "--device abacus"),
    (1, "too little", "--sizes 131072 --batches 1000000"), (2, "modez", "--modez train")]

TEXT = "--tokenizer t.json --text text.txt --rounds"
INPUTS = {"bench_tokenizer": {"text.txt": "the theme, and the rest of it. " * 5000, "t.json": json.dumps({
    "added_tokens": [], "decoder": {"type": "Fuse"},
    "pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": " ?[a-z]+|."}},
    "model": {"type": "BPE", "unk_token": "?", "merges": ["t h", "th e"],
              "vocab": {"?": 0, "t": 1, "h": 2, "th": 3, " ": 4, "e": 5, "the": 6}}})}}
CASES["bench_tokenizer"] = [
    dict(args=f"{TEXT} 2 --commit test --json run.json", file="run.json", keys="device clock",
         prints=[r"t.json .*text.txt +1 thread.s. +[0-9.]+ MB/s"],
         positive=["encoding/0/tokens", "encoding/0/runs/0/mb_per_second"]),
    dict(args=f"{TEXT} 2 --cpu-time --json cpu.json", file="cpu.json", keys="", lengths={"encoding/0/runs": 1},
         values={"clock": ["processor"]}),
    (2, "--rounds is 0", f"{TEXT} 0"), (1, "none.json", "--tokenizer none.json --text text.txt"),
    (2, "needs --tokenizer PATH... and --text FILE", "--text text.txt")]

CASES["bench_comm"] = [
    (2, "mpirun -n 2 --bind-to none bench_comm", "", "one rank"),
    dict(args="--seconds 0 --largest 262144 --commit test --json run.json", file="run.json",
         prints=["2 ranks, 2 on a machine", "all_to_all +8 ", "all_reduce +262144 "],
         keys="device ranks ranks_per_node", lengths={"collectives": 30},  # five at each of 8, 64 ... 262144 bytes
         positive=["collectives/*/seconds/median"]),
    (2, "--largest is 8. It must be from 4096", "--largest 8"),
    dict(args="--on-paper gpt2-xl", program="predict.py",
         prints=["hidden behind backward, ms +36.29 +51.79 +49.64 +24.60", "messages of a rank +6664 +29988 +147312 ",
                 "loss and signals, ms +0.06 +1.18 +20.38 +327.59", "the step, ms +102.25 +402.30 +1042.40 +8832.08",
                 "all_gather of parameters, ms +28.47 +208.16 +643.69 ", "efficiency, % +94.26 +23.96 +9.25 +1.09",
                 "peak of a rank, GB +33.80 +33.80 +33.83 +34.34", "backward, ms +52.03 "])]

LM = "--device cuda --size tiny --batch 1 --context 4 --vocab 20"
TIMEIT = "--device cuda --sizes tiny --batch 1 --context 4 --vocab 20 --steps 2 --warmups 1 --matrix-only"
CUDA_STEP = "--device cuda --layers 1 --width 32 --heads 2 --context 8 --batch 1 --steps 2 --untimed 2"
CASES["bench_cuda"] = [
    dict(args=f"{LM} --types forward --warmup 0", skip=r"\[device\]|\[cuda\]"),
    dict(args=f"{LM} --types backward,train --warmup 1 --json lm.json", file="lm.json",
         prints=["Using device: cuda", "cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_size_sum", r"\n9. Copies: "],
         keys="device", values={"runs/*/copies/host_to_device/count": [23, 23]},  # 2 x 9 weights, 3 others, cos and sin
         true={"a copy of each parameter, cos and sin": lambda r: all(
             run["copies"]["host_to_device"]["bytes"] == 4 * run["parameters"] + 2 * 4 * 4 * 4 for run in r["runs"])}),
    *(dict(program="bench_gpt_timeit", args=f"{TIMEIT} --mode {m} --json {m}.json", file=f"{m}.json",
           lengths={"rows": 6}, same=["rows/*/loss"]) for m in MODES),
    *(dict(program="bench_step", args=f"{CUDA_STEP} --mode {m} --json step_{m}.json", file=f"step_{m}.json",
           same=["loss"], values=values) for m, values in zip(MODES, ({}, {"compiled/graph_launches": [2]}))),
    dict(file="step_compiled.json",
         true={"all ops recorded": lambda r: r["compiled"]["recorded_ops"] == r["compiled"]["ops"]}),
    dict(program="bench_switchback", args="--device cuda --quick --json s.json",
         prints=["bf16 [(]this device has instructions", "time global_bwd: ", "rate w_quantize_global_transpose: ",
                 "memory_efficient +compiled "], file="s.json"),
    dict(program="bench_fragmented", args="--device cuda --sizes 32 --batches 3 --fragments 2,4 --run eager,compiled "
         "--warmup 4 --steps 1 --json fragmented.json", file="fragmented.json", lengths={"cells": 20},
         true={"equal losses": lambda r: (loss := at(r, "cells/*/last_loss"))[:10] == loss[10:]})]

NAME, program, folder, *more = sys.argv[1:]
FOLDER, SEEN = pathlib.Path(folder).resolve(), {}
PROGRAMS = {os.path.basename(p): [os.path.abspath(p)] for p in more} | {NAME: [os.path.abspath(program)]}
if NAME == "bench_comm":
    PROGRAMS = {"predict.py": [sys.executable, os.path.abspath(f"{__file__}/../../dist/predict.py"), more[0]],
                "one rank": PROGRAMS[NAME], NAME: [*more[1:], "-n", "2", *PROGRAMS[NAME]]}
shutil.rmtree(FOLDER, ignore_errors=True)
FOLDER.mkdir(parents=True)
for file, text in INPUTS.get(NAME, {}).items():
    (FOLDER / file).write_text(text, encoding="utf-8")
for step in CASES[NAME]:
    refuse(*step) if isinstance(step, tuple) else check(**step)
