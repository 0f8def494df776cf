#!/usr/bin/env python3
"""No kernel of hot_kernels.txt spills registers or has a stack frame, in the output of ptxas for each GPU (sm_90a).
    ptxas.py NVCC INCLUDE ROOT BUILT OUT GPU...
The build keeps the output in BUILT (cmake/keep_ptxas.sh). If a source is newer, or the build is for other GPUs, nvcc
compiles the file into OUT.
"""
import pathlib
import re
import sys

from whole_vectors import made


def main(nvcc, include, root, built, out, *gpus):
    flags = ["-c", "--threads=2", "-Xptxas=-v"]
    flags += [f"-gencode=arch={gpu.replace('sm', 'compute')},code={gpu}" for gpu in gpus]
    is_whole = lambda log: all(f"for '{gpu}'" in log.read_text() for gpu in gpus)
    seen, wrong = 0, []
    for line in (pathlib.Path(root) / "tests/cuda/hot_kernels.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        if not (parts := re.fullmatch(r"([\w/]+): *(\S+)(?: except (\S+))?", line)):
            sys.exit(f"hot_kernels.txt: cannot read '{line}'")
        file, wanted, excepted = parts.groups()
        log = made((nvcc, include, root, built, out), file, ".ptxas", flags, is_whole).read_text()
        kernel, of_gpu = None, dict.fromkeys(gpus, 0)
        for text in log.splitlines():
            if entry := re.search(r"Compiling entry function '([^']+)' for '([^']+)'", text):
                kernel, gpu = entry.groups()
            elif "stack frame" in text and kernel:
                if re.search(wanted, kernel) and not (excepted and re.search(excepted, kernel)):
                    of_gpu[gpu] = of_gpu.get(gpu, 0) + 1
                    if not text.strip().startswith("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"):
                        wrong.append(f"cuda/{file}.cu, {gpu}: {kernel}: {text.strip()}")
                kernel = None  # a device function may follow
        lacking = [gpu for gpu in gpus if not of_gpu[gpu]]
        wrong += [f"hot_kernels.txt: cuda/{file}.cu has no kernel '{wanted}' for {gpu}" for gpu in lacking]
        seen += sum(of_gpu.values())
    summary = f"{seen} hot kernels for {' '.join(gpus)}: {len(wrong)} spill, have a stack frame or do not exist"
    print(*wrong, summary, sep="\n")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
