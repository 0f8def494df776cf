#!/usr/bin/env python3
"""Which folder includes which, and that two files alone have inline assembly: python3 tests/include_rules.py"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = "core ops autograd cpu cuda models".split()  # folders whose headers are <tapegrad/<folder>/...>
# Each folder and what it includes, then each room of a folder and the rooms; "." is the folder itself. tests/emulator
# replaces CUDA's headers, tapegrad.h and tools.h are for users, above all folders, and bench_threads has cpu's pool.
MAY = dict(line.split(": ") for line in """\
core: core
ops: core ops
autograd: core ops autograd
cpu: core ops cpu
cuda: core ops cuda emulator
models: core ops autograd models tapegrad.h tools.h
bench: core ops autograd cpu models tapegrad.h tools.h
tests: core ops autograd cpu cuda models emulator tapegrad.h tools.h
core/util: util
core/backend: . backend util
core/profile: . backend util io profile
core/engine: . backend util profile engine
core/comm: . backend util engine comm
core/io: . backend util io
core/plan: . backend util engine io plan profile
core/.: . backend util
cpu/runtime: runtime
cpu/simd: runtime simd
cpu/gemm: runtime simd gemm
cpu/attention: runtime simd gemm attention
cpu/kernels: . runtime simd gemm
cpu/scalar: . runtime simd
cpu/.: . runtime simd gemm
ops/quantized: . quantized
ops/training: . training
ops/.: . quantized training
cuda/runtime: runtime
cuda/profile: profile runtime
cuda/gemm: gemm runtime
cuda/nccl: nccl runtime
cuda/device: device runtime
cuda/jit: jit device runtime
cuda/attention: attention device runtime
cuda/kernels: . kernels device gemm nccl runtime
cuda/.: device jit profile runtime
models/config: config
models/nn: nn config
models/tokenizers: tokenizers
models/jinja: jinja tokenizers
models/optim: optim nn config
models/data: data jinja tokenizers config
models/model: model data jinja tokenizers nn config
models/gpt: gpt model nn config
models/train: train gpt model optim data jinja tokenizers nn config
models/tools: tools train gpt model optim data jinja tokenizers nn config
models/io: io train gpt model optim data jinja tokenizers nn config
models/apps: config nn data jinja tokenizers model gpt optim train tools io apps
models/examples: examples
models/.: config nn data jinja tokenizers model gpt optim train tools io
""".splitlines())
MOST_CLIMBS = {"models/apps/train": 12, "models/apps/finetune": 12}
INCLUDE = re.compile(r"""^[ \t]*#[ \t]*include[ \t]*([<"]([^>"\n]+)[>"])""", re.M)
ASSEMBLY = re.compile(r"(?<!\w)_*asm_*(\s+volatile)?\s*\(")
EIGEN = re.compile(r"<(unsupported/|eigen3/)?Eigen/")
CUDA = re.compile(r"<(cuda|cublas|cudnn|cu[bp]/|cupti|thrust/|nvrtc|nvtx|nvToolsExt|nvml|nccl|mma[.]h|cooperative_)")


def rule_of(folder, here, include, path):
    """The rule that an include of a file in the folder `here` breaks, or None."""
    quoted, outside = include.startswith('"'), folder in ("bench", "tests")
    if quoted and here == ROOT / "models/examples" and (here / path).exists():
        return None  # programs as users have them
    own = quoted and outside and (ROOT / folder / path).exists()  # a quoted path from the folder
    if not own and re.match(rf"[<\"]([.]+/)*({'|'.join(LIBRARY)})/", include):
        return "(e) an include of the project is written <tapegrad/...>"
    if quoted:
        if not outside:
            return "(e) quoted includes are for bench/ and tests/, here it is <tapegrad/...>"
        return None if own or (here / path).exists() else f"(e) a quoted include names a header of {folder}/ itself"
    if (of := re.match(r"<tapegrad/([^/>]+)", include)) and of[1] not in MAY[folder].split():
        return f"(a, c, d) {folder}/ may include only {MAY[folder]}"
    if EIGEN.match(include) and folder != "cpu":
        return "(b) Eigen only inside cpu/"
    if CUDA.match(include) and folder != "cuda":
        return "(b) CUDA headers only inside cuda/"
    to = re.match(rf"<tapegrad/{folder}/(?:([a-z_]+)/)?[a-z_0-9]+[.]h>", include)
    room = f"{folder}/{[*here.relative_to(ROOT / folder).parts, '.'][0]}"
    if to and f"{folder}/." in MAY and (to[1] or ".") not in MAY.get(room, "").split():
        return f"(g) {room} may include of {folder}/ only {MAY.get(room, 'what has a rule here')}"
    return None


def climbs(below, start):
    """Includes that lead back up to a file on the way from the start. A header and its source are one file."""
    entered, found = set(), []

    def descend(above, at):
        entered.add(at)
        for to in below[at]:
            if to in (*above, at) and to != at:
                found.append(f"{at} -> {to}")
            elif to not in entered:
                descend((*above, at), to)

    descend((), start)
    return found


def main():
    seen, wrong, below = 0, [], collections.defaultdict(list)
    for folder in [*LIBRARY, "bench", "tests"]:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            name, text = file.relative_to(ROOT), file.read_text(errors="replace")
            say = lambda at, what: wrong.append(f"{name}:{text.count(chr(10), 0, at) + 1}: {what}")
            if folder == "cuda" and str(name) not in ("cuda/device/ptx.h", "cuda/device/hopper.h"):
                for m in ASSEMBLY.finditer(text):
                    say(m.start(), "(f) inline assembly only in cuda/device/ptx.h and hopper.h, next to its emulation")
            for m in INCLUDE.finditer(text):
                seen += 1
                if own := re.fullmatch("tapegrad/(.+)[.]h", m[2]):
                    below[str(name.with_suffix(""))].append(own[1])
                if rule := rule_of(folder, file.parent, m[1], m[2]):
                    say(m.start(1), f"{m[1]}: {rule}")
    for start, most in MOST_CLIMBS.items():
        found = climbs(below, start)
        print(f"{start}: {len(found)} climbs of at most {most}")
        wrong += found if len(found) > most else []
    print(*wrong, f"{len(wrong)} of {seen} includes break the rules", sep="\n")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
