#!/usr/bin/env python3
"""Checks bench/common/report.py: bench_report.py FOLDER OPS TRAINING TIMEIT LM DECODE SWITCHBACK FRAGMENTED STEP. OPS
and TRAINING are results of bench_ops and bench_training, the others are programs, whose small results go to FOLDER."""
import os, pathlib, subprocess, sys

REPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "common", "report.py")
folder, ops, training, timeit, lm, decode, switchback, fragmented, step = sys.argv[1:]
at = lambda name: os.path.join(folder, name)
command = [sys.executable, REPORT, "-o", at("page.html")]
report = lambda *files: subprocess.run([*command, *files], capture_output=True, text=True)
if (run := report(ops)).stderr.startswith("skipped:"):
    sys.exit(print(run.stderr))
os.makedirs(folder, exist_ok=True)
for name, words in (
        ("timeit", [timeit, "--quick"]),
        ("decode", [decode, "--arch", "nano", "--prompt", "2", "--tokens", "3", "--rounds", "1"]),
        ("step", [step, *"--arch nano --layers 2 --width 64 --context 32 --batch 4 --steps 3 --untimed 1".split()]),
        ("switchback", [switchback, "--quick"]),
        ("fragmented", [fragmented, *"--sizes 64,96 --batches 1,2 --fragments 2,8 --warmup 1 --steps 1".split()]),
        ("lm", [lm, "--quick", "--trace", at("trace.json")])):
    subprocess.run([*words, "--json", at(f"{name}.json")], check=True, capture_output=True)
run = report(ops, training, *(at(f"{s}.json") for s in "timeit decode step switchback fragmented lm trace".split()))
assert run.returncode == 0, run.stderr
page = pathlib.Path(at("page.html")).read_text(encoding="utf-8")
assert page.count("<h2>") == 9 and page.count("<svg") > 30 and "<script" not in page and 'href="http' not in page
for plot in "optimizer_step", "profiled_step", "s peak", "inference, batch 2", "Time over LoRA", "Distribution: lazy":
    assert plot in page, f"{plot} is missing"
pathlib.Path(at("bad.json")).write_text('{"runs": [{}], "machine": "a name"}', encoding="utf-8")
no_profile = "has the key 'runs' of a file of bench_lm_profile, and is none"
for words, file in ((no_profile, "bad.json"), ("cannot be read", "none.json")):
    run = report(at(file))
    assert run.returncode == 1 and words in run.stderr and "Traceback" not in run.stderr, run.stderr
