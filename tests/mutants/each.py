"""Every barrier, wait and bound of kernel files, each in turn, and the tests for them: `run.py --each`."""
import re

from mutant import ROOT, Mutant, code_of, lines_of, run

# (name, pattern, what takes its place)
CHANGES = [
    ("a barrier", r"__sync(?:threads|warp)\(\w*\);", ";"),
    ("a wait", r"\b(?:cp_async_wait<\w+>|mbarrier_wait|wgmma_wait)\([^;]*\);", ";"),
    ("a group", r"\bcp_async_commit\(\);", ";"),
    ("a fence", r"\b(?:__threadfence|async_fence|wgmma_fence)\(\);", ";"),
    ("a check", r"\bif \((?!constexpr)[^;{}]*?[<>=]=?[^;{}]*?\) return;", ";"),
    ("a bound", r" < ", " <= "),
    ("a bound", r" >= ", " > "),
    ("a bound", r" <= ", " < "),
]
# These take minutes and test what stands on the kernels.
NOT_RUN = "gpt", "memory", "runtime", "library"
NOT_CHANGED = "cuda/device/ptx.h", "cuda/device/hopper.h"  # instructions and their twins; what no kernel file includes is not either


def changes(file):
    """All that can be changed of a file."""
    kernels = [] if file in NOT_CHANGED else includers(file)
    lines = [s.strip() for s in lines_of(file)]
    nvcc = []  # of each #if around: whether it is nvcc's side
    for i, s in enumerate(lines if kernels else []):
        plain = code_of(s)
        if plain.startswith("#if"):
            nvcc.append(bool(re.match(r"#ifdef __CUDA(CC|_ARCH)__", plain)))
        elif plain.startswith("#else"):
            nvcc[-1] = False
        elif plain.startswith("#endif"):
            nvcc.pop()
        if any(nvcc) or plain.startswith("#") or "template" in plain or "static_assert" in plain:
            continue
        nth = f"@{lines[: i + 1].count(s)} " if lines.count(s) > 1 else ""
        for why, pattern, instead in CHANGES:
            for m in re.finditer(pattern, plain):
                now = plain[: m.start()] + instead + plain[m.end() :]
                yield Mutant(file, kernels, why, None, nth + s, now.strip())


def includers(file):
    """The kernel files that a file is in."""
    texts = {str(p.relative_to(ROOT)): p.read_text() for p in (ROOT / "cuda").glob("*/*") if p.suffix in (".cu", ".h")}
    found, left = set(), [file]
    while left:
        f = left.pop()
        found.add(f)
        left += [g for g, t in texts.items() if f"#include <tapegrad/{f}>" in t and g not in found]
    return sorted(f for f in found if f.endswith(".cu"))


def units(program):
    """(TG_CASES, test case): test cases, those of the op cases for the ops of one kernel file at a time."""
    files = ",".join(f"*cuda/test_{f}.cpp" for f in NOT_RUN)
    listed = lambda *more: [s.replace(",", "?") for s in run([program, "-ltc", *more], 100).stdout.splitlines() if s[:1] not in "[="]
    words = []
    for path in sorted((ROOT / "cuda").glob("*/*.cu")):
        names = re.findall(r"TG_KERNEL\((?:op::)?(\w+)", path.read_text()) or [path.stem] * (path.stem == "pointwise")
        words.append(",".join(sorted({re.sub(r"(?<!^)(?=[A-Z])", "_", n).lower() for n in names})))
    words = [w.replace("pointwise", "gelu,mul").replace(",", ".,") + "." for w in words if w]  # the ends of names of ops
    return [(w, t) for w in words for t in listed("-sf=*cuda/test_ops.cpp")] + [("all", t) for t in listed("-sfe=*cuda/test_ops.cpp," + files)]
