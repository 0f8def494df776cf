#!/usr/bin/env python3
"""The machine code of hot kernels for sm_90a may not be worse than recorded in sass.txt.
    sass.py NVCC INCLUDE ROOT BUILT OUT [--update]
Disassembles the objects in BUILT; a missing one, or one older than a source, is compiled into OUT. Per kernel:
registers; instructions that access local memory (spills); static shared memory in bytes; blocks per SM, by these and
the threads of __launch_bounds__ (without dynamic shared memory); instructions of the hot loop per 16 bytes of global
memory and per HMMA; LDSM, which read operands of HMMA from shared memory, per HMMA. The hot loop is the shortest of
those with the most HMMA; without HMMA, the longest of the innermost loops that move the most bytes, or the whole
kernel. Code that a branch skips counts, an inner loop once. --update writes sass.txt. The numbers of another nvcc are
printed, and are no error.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

from whole_vectors import made, short_names

COLUMNS = ["registers", "local", "shared", "CTAs", "per 16 B", "per HMMA", "LDSM"]
WIDTHS = {".128": 16, ".64": 8, ".U16": 2, ".S16": 2, ".U8": 1, ".S8": 1}


def blocks_per_sm(threads, registers, shared):
    """sm_90: 64 Ki registers, by 256 for a warp; 2 048 threads; 32 blocks; 228 KiB, 1 KiB lost per block."""
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // 256) * 256
    return min(32, 64 // warps, 65536 // of_warp // 4 * 4 // warps, 233472 // (-(-(shared + 1024) // 128) * 128))


def bytes_of(instruction):
    name = re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0]
    if not name.startswith(("LDG.", "STG.", "LDGSTS.")):
        return 0
    return next((n for suffix, n in WIDTHS.items() if suffix in name), 4)


def hot_loop(code):
    """(instructions, bytes, HMMA, LDSM) of a list of (address, instruction)."""
    code = [(at, text) for at, text in code if not text.startswith("NOP")]
    loops = {(code[0][0], code[-1][0])}
    for at, text in code:
        if jump := re.search(r"\bBRA\S*\s+(?:\S+,\s*)*0x([0-9a-f]+)", text):
            loops.add((int(jump[1], 16), at))
    measured = []
    for begin, end in loops:
        body = [text for at, text in code if begin <= at <= end]
        moved, products = sum(map(bytes_of, body)), sum("HMMA" in text for text in body)
        if begin < end and moved:
            measured.append((products, moved, len(body), begin, end, sum("LDSM" in text for text in body)))
    if not measured:
        return 0, 0, 0, 0
    if most := max(m[0] for m in measured):
        chosen = min((m for m in measured if m[0] == most), key=lambda m: m[2])
    else:
        inner = [m for m in measured if not any(m != o and m[3] <= o[3] and o[4] <= m[4] for o in measured)]
        chosen = max(inner)
    products, moved, length, _, _, loads = chosen
    return length, moved, products, loads


def measure(binary, cuobjdump):
    """{kernel: its numbers in the order of COLUMNS} of an object for sm_90a."""
    dump = lambda what: subprocess.run([cuobjdump, "-arch", "sm_90a", what, binary], capture_output=True, text=True,
                                       check=True).stdout
    code, resources = {}, {}
    for line in dump("-sass").splitlines():
        if entry := re.search(r"Function : (\w+)", line):
            code[kernel := entry[1]] = []
        elif found := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?) *;", line):
            code[kernel].append((int(found[1], 16), found[2]))
    for name, registers, shared in re.findall(r"Function (\w+):\n.*?REG:(\d+).*?SHARED:(\d+)", dump("-res-usage")):
        resources[name] = int(registers), max(0, int(shared) - 1024)  # each block's system share is 1024
    threads = {}
    for line in (lines := iter(dump("-elf").splitlines())):
        if entry := re.match(r"\.nv\.info\.(\w+)", line):
            kernel = entry[1]
        elif line.endswith("EIATTR_MAX_THREADS"):
            next(lines)
            threads[kernel] = int(re.search(r"0x[0-9a-f]+", next(lines))[0], 16)
    numbers = {}
    for kernel in resources:
        registers, shared = resources[kernel]
        length, moved, products, loads = hot_loop(code[kernel])
        local = sum(bool(re.search(r"\b(LDL|STL)\b", text)) for _, text in code[kernel])
        numbers[kernel] = [registers, local, shared,
                           blocks_per_sm(threads[kernel], registers, shared) if kernel in threads else 0,
                           round(length * 16 / moved, 1) if moved else 0,
                           round(length / products, 2) if products else 0,
                           round(loads / products, 3) if products else 0]
    return numbers


def main(nvcc, include, root, built, out, update=""):
    paths = f"{pathlib.Path(nvcc).resolve().parent}:{os.environ['PATH']}"
    cuobjdump, disassembler = (shutil.which(tool, path=paths) for tool in ("cuobjdump", "nvdisasm"))
    if not cuobjdump or not disassembler:
        print("skipped: cuobjdump and nvdisasm are neither beside nvcc nor in PATH; PyPI has them as nvidia-cuda-...")
        return
    version = re.search(r"V([\d.]+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)[1]
    record = pathlib.Path(root) / "tests/cuda/sass.txt"
    texts = record.read_text().splitlines()
    recorded = {}
    for text in texts:
        if found := re.match(r"(\w+/\w+): (.*)", text):
            file = found[1]
            recorded[file] = found[2], {}
        elif text.startswith("  "):
            name, *numbers = re.split(r"  +", text.strip())
            recorded[file][1][name] = [float(n) for n in numbers]

    def numbers_of(file):
        binary = made((nvcc, include, root, built, out), file, "", ["-cubin", "-arch=sm_90a"])
        numbers = measure(binary, cuobjdump)
        named = zip(short_names(numbers), numbers.values())
        return {name: n for name, n in named if re.search(recorded[file][0], name)}

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        measured = dict(zip(recorded, pool.map(numbers_of, recorded)))
    show = lambda name, numbers: "  ".join([f"  {name:56}", *(f"{n:>{len(c)}g}" for n, c in zip(numbers, COLUMNS))])
    same, worse = f"nvcc {version}" in texts, []
    lines = ["  ".join([f"{'':58}", *COLUMNS])]
    for file, (pattern, before) in recorded.items():
        lines.append(f"{file}: {pattern}")
        for name, now in sorted(measured[file].items()):
            lines.append(show(name, now))
            if (old := before.get(name)) and any(a < b if c == "CTAs" else a > b for a, b, c in zip(now, old, COLUMNS)):
                worse.append(f"recorded:\n{show(name, old)}\nnow:\n{show(name, now)}")
            elif not old:
                worse.append(f"not recorded: {file}: {name}")
        worse += [f"gone: {file}: {name}" for name in before if name not in measured[file]]
    print("\n".join([f"nvcc {version}", *lines]))
    if update:
        record.write_text("\n".join([*(t for t in texts if t.startswith("#")), f"nvcc {version}", *lines[1:]]) + "\n")
    elif worse:
        print("\n".join([f"{len(worse)} differences to tests/cuda/sass.txt, which this command updates:",
                         f"  python3 {' '.join(sys.argv)} --update", *worse]))
        sys.exit("these are worse" if same else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
