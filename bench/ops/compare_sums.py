#!/usr/bin/env python3
"""The reductions of bench_sums in PyTorch: errors and times of both."""
import argparse, subprocess, time
import torch

F = torch.nn.functional


def element(data, i):
    x = i.double() * 0.6180339887498949
    uniform = x - x.floor()
    tenth = torch.full_like(x, 0.1)
    return {"constant": tenth, "uniform": uniform, "alternating": torch.where(i // 2 % 2 == 1, -uniform, uniform),
            "one large": torch.where(i < 2, torch.full_like(x, 1e6), tenth)}[data].float()


def norm_gradient(which):
    def f(x):
        weights = [torch.ones_like(x[0]).requires_grad_() for _ in range(2)]
        return torch.autograd.grad((F.layer_norm(x, x.shape[1:], *weights) * x).sum(), weights)[which]
    return f


REDUCTIONS = {  # columns, function
    "sum": (1, torch.sum),
    "sum of columns": (2, lambda x: x.sum(0)),
    "mean of columns": (2, lambda x: x.mean(0)),
    "var": (1, torch.var),
    "var of columns": (2, lambda x: x.var(0)),
    "norm's weight": (2, norm_gradient(0)),
    "norm's bias": (2, norm_gradient(1)),
}


def peer(name, data, n):
    columns, f = REDUCTIONS[name]
    x = element(data, torch.arange(n * columns)).view(n, columns)
    wide = x.double()
    scale = (wide * wide).mean() if name.startswith("var") else f(wide.abs()).abs().max()
    begin = time.perf_counter()
    y = f(x)
    seconds = time.perf_counter() - begin
    return ((y.double() - f(wide)).abs().max() / scale.clamp(min=1e-6)).item(), 1e6 * seconds


parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("program")
parser.add_argument("--most", default="25", help="2^N terms at most")
args = parser.parse_args()
out = subprocess.run([args.program, "--most", args.most], check=True, capture_output=True, text=True).stdout
print(f"PyTorch {torch.__version__}\n{'reduction':<16} {'data':<12} {'terms':>5} {'error':>10} {'PyTorch':>10} "
      f"{'us':>12} {'PyTorch':>12}")
for line in out.splitlines()[1:]:
    name, data, terms = line[:16].strip(), line[17:29].strip(), line[30:35].strip()
    error, us = line[36:].split()
    their, their_us = peer(name, data, 1 << int(terms[2:]))
    print(f"{name:<16} {data:<12} {terms:>5} {float(error):>10.1e} {their:>10.1e} {float(us):>12.1f} {their_us:>12.1f}")
