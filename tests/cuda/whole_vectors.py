#!/usr/bin/env python3
"""Kernels read and write 16 contiguous bytes of global memory by one instruction. nvcc may split the assignment of a
struct into its elements, and then each warp moves four to eight times the sectors. cuda/device/vec.h has accesses that
are not split.
    whole_vectors.py NVCC INCLUDE ROOT BUILT OUT
Reads the PTX for sm_90a in BUILT of the files of whole_vectors.txt; nvcc makes a missing or old one in OUT. Split
accesses are of one kind in one basic block, of elements of at most 4 bytes and less than 16 bytes each, with one base
register, and cover 16 contiguous bytes. Prints the accesses of each kernel. A split one that is no exception is an
error.
"""
import collections
import concurrent.futures
import pathlib
import re
import subprocess
import sys

FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "-DFMT_USE_CONSTEXPR=1", "--expt-relaxed-constexpr", "-diag-suppress=20014"]
# ld or st, elements, bits of one, base, offset
ACCESS = re.compile(r"(?:@!?%p\d+ )?(ld|st)(?:\.\w+)*?\.global(?:\.\w+)*?(?:\.v([248]))?\.[bfsu](\d+)\s"
                    r".*?\[(%rd\d+)(?:\+(-?\d+))?\]")
ADD = re.compile(r"add\.[su]64\s+(%rd\d+), (%rd\d+), (-?\d+);")
ENDS_BLOCK = re.compile(r"\$?\w+:|(?:@!?%p\d+ )?(?:bra|ret|bar|call)\b|[{}]")


def runs_of(pieces):
    """Of a set of (offset, bytes): the lengths in bytes of what lies without a gap."""
    begin = end = None
    for at, size in sorted(pieces):
        if at != end:
            if end is not None:
                yield end - begin
            begin = at
        end = at + size
    if end is not None:
        yield end - begin


def accesses_of(ptx):
    """{mangled kernel: Counter of what its accesses are}."""
    kernels, roots, pieces = {}, {}, collections.defaultdict(set)
    seen = collections.Counter()
    for line in ptx.splitlines():
        line = line.strip()
        if entry := re.search(r"\.entry (\w+)", line):
            seen = kernels.setdefault(entry[1], collections.Counter())
            roots = {}
        elif ENDS_BLOCK.match(line):
            for (kind, _), some in pieces.items():
                seen[f"{kind} split"] += sum(length >= 16 for length in runs_of(some))
            pieces.clear()
        elif add := ADD.match(line):
            root, offset = roots.get(add[2], (add[2], 0))
            roots[add[1]] = root, offset + int(add[3])
        elif access := ACCESS.match(line):
            kind, element = access[1], int(access[3]) // 8
            size = element * int(access[2] or 1)
            seen[f"{kind} {size} B"] += 1
            if size < 16 and element <= 4:
                root, offset = roots.get(access[4], (access[4], 0))
                pieces[kind, root].add((offset + int(access[5] or 0), size))
    return kernels


def short_names(mangled):
    """swiglu_grad<tg::bf16, 8>, of each."""
    names = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    clean = re.sub(r"\(anonymous namespace\)::|tg::cuda::|\([\w:]+\)(?=\d)", "", names)
    return [re.sub(r"^void |\(.*", "", name) for name in clean.splitlines()]


def made(places, file, kind, flags, is_whole=lambda path: True):
    """Path of what nvcc makes of cuda/FILE.cu, newer than all sources: BUILT/FILE.cu.oKIND, or one in OUT. Kind .ptxas
    is nvcc's log."""
    nvcc, include, root, built, out = map(pathlib.Path, places)
    source, own = root / f"cuda/{file}.cu", out / f"{file.replace('/', '_')}.o{kind}"
    headers = [*root.glob("core/*.h"), *root.glob("ops/**/*.h"), *root.glob("cuda/*/*.h"), pathlib.Path(__file__)]
    newest = max(f.stat().st_mtime for f in [source, *headers])
    for path in (built / f"{file}.cu.o{kind}", own):
        if path.exists() and path.stat().st_mtime >= newest and is_whole(path):
            return path
    out.mkdir(parents=True, exist_ok=True)
    output = own.with_suffix("") if kind == ".ptxas" else own
    done = subprocess.run([nvcc, *FLAGS, *flags, f"-I{include}", source, "-o", output], capture_output=True, text=True)
    if done.returncode:
        own.unlink(missing_ok=True)
        sys.exit(f"nvcc cannot compile cuda/{file}.cu:\n{done.stdout}{done.stderr}")
    if kind == ".ptxas":
        own.write_text(done.stdout + done.stderr)
    return own


def main(*places):
    root = pathlib.Path(places[2])
    allowed = {}
    for line in (root / "tests/cuda/whole_vectors.txt").read_text().splitlines():
        if line.startswith("  except "):
            allowed[file].append(tuple(line.removeprefix("  except ").split(": ")[0].split(" ", 1)))
        elif line and not line.startswith("#"):
            file = line
            allowed[file] = []

    def ptx_of(file):
        is_whole = lambda ptx: ".target sm_90a" in ptx.read_text()
        return made(places, file, ".ptx", ["-ptx", "-arch=compute_90a"], is_whole).read_text()

    wrong, count = [], 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        texts = dict(zip(allowed, pool.map(ptx_of, allowed)))
    for file, text in texts.items():
        kernels = accesses_of(text)
        used = set()
        for name, seen in sorted(zip(short_names(kernels), kernels.values()), key=lambda k: k[0]):
            listed = ", ".join(f"{n} x {what}" for what, n in sorted(seen.items()) if n)
            print(f"{file}: {name}: {listed or 'none'}")
            for kind in ("ld", "st"):
                excuses = [e for e in allowed[file] if e[0] == kind and e[1] in name]
                if seen[f"{kind} split"]:
                    used.update(excuses)
                    if not excuses:
                        wrong.append(f"{file}: {name}: {seen[f'{kind} split']} x {kind} split")
            count += 1
        wrong += [f"{file}: no kernel needs the exception '{' '.join(e)}'" for e in allowed[file] if e not in used]
    if not count:
        sys.exit("there is no kernel")
    if wrong:
        sys.exit("\n".join([f"{len(wrong)} faults in {count} kernels:", *wrong]))
    print(f"{count} kernels: no vector of global memory is split")


if __name__ == "__main__":
    main(*sys.argv[1:])
