"""Writes the expected values that the C++ tests compare with: *.safetensors in this folder.

    python make_fixtures.py [--out DIR]

Made with Python 3.11, torch 2.15.0 (CPU, one thread), numpy 2.4.6, safetensors 0.8.0 (numpy and safetensors serve
only to read the files back). Everything is computed by torch in float64, except the f32 half of
optimizers.safetensors.
Every random number is rounded to a float32 value before use, so a float32 test starts from exactly the same inputs.
Each tensor has its own generator, seeded with the CRC of its name: a new case leaves the inputs of the
others as they are; outputs may differ in the last bits on another processor or build of torch.

ops.safetensors    per case '<op>.<variant>': .in0 .in1 ... inputs in the order of the signatures in OPS below;
                   .out0 .out1 outputs; .w .w1 .w2 random weights of the shapes of out0, out1 and out2; .grad<i> gradient
                   of sum(out0 * w) + sum(out1 * w1) + ... with respect to in<i>. Integers and bools have neither
                   weights nor gradients.
                   metadata['<op>.<variant>'] is a JSON object with the op's attributes ('{}' if it has none), so the
                   metadata lists all cases.
adam_forms.safetensors  'init' (6, 4), 'grad' (10, 6, 4), and after ten steps '<form>.final' for each form of ADAM_FORMS
                   below: torch.optim.Adam and AdamW, and the update of sqrt(1 - beta2^t) / (1 - beta1^t) m /
                   (sqrt(v) + eps) with the decay before or after it. metadata['config'] holds the settings.
optimizers.safetensors  '<parameter>.init' and '<parameter>.grad' (6, ...), one gradient per step. '<case>.<f32|f64>.
                   <parameter>' (6, ...) are the values after each step of torch.optim.SGD, AdamW with groups, or Muon,
                   of the cases in OPTIMIZERS below: metadata['config']. Muon's Newton-Schulz iterations are in f64
                   there, and in bf16, as torch has them, in '<case>.bf16.<parameter>'.
lora.safetensors   a frozen linear layer, 'weight' (11, 7) and 'bias' (11), under LoRA of rank 3: y = x weight^T + bias
                   + alpha / 3 (x a) b, with 'a' (7, 3), 'b' (3, 11) and 'x' (2, 5, 7). 'y' and 'grad.<x|a|b>' of
                   sum(y * w). Then ten AdamW steps on mean((y - target)^2) from 'a' and a b of zeros, one 'inputs' and
                   'target' each: 'losses' (10), and 'step<1|2|10>.<a|b>'. metadata['config'] holds the settings.
switchback.safetensors  a linear layer by 8-bit codes: 'x' (3, 5, 23), 'weight' (41, 23), 'bias' (41) and 'g', the gradient of
                   y, in f32, with a row of zeros in x and g and a tie; '<mode>.<y|dx|dw|db>' in f64 from the codes of f32,
                   for the modes global, vector_wise and memory_efficient; 'rows.<codes|absmax>' of x.
fragmented.safetensors  a FragmentedLinear of 24 -> 10 in 4 fragments, by its definition: 'x' (7, 24), 'target' (7, 10),
                   'selector' (4, 6), 'experts' (4, 6, 10), 'compressor' (3, 24), 'expander' (10, 3), 'expert_bias' and
                   'compressed_bias' (10). For soft and hard selection '<mode>.y', '<mode>.grad.<name>' of sum(y * w), and
                   after ten Adam steps on mean((y - target)^2) '<mode>.losses' (10) and '<mode>.final.<name>'. Row 2 of x
                   is 0, so that its scores tie; the last fragment is never selected.
gpt_*.safetensors  'init.<weight>', 'grad.<weight>' and 'final.<weight>'; tokens and targets (11, B, T): batch 0 gives
                   logits, loss and grad from the initial weights, batches 1..10 are the ten AdamW steps that start
                   again from the initial weights and give losses (10) (each before its step) and final.
                   metadata['config'] holds the model, metadata['adamw'] the optimiser. Linear weights are (out, in);
                   q, k and v are weights of their own, as are gate and up of swiglu.
"""

import argparse
import fnmatch
import itertools
import json
import math
import pathlib
import re
import struct
import unittest.mock
import zlib

import masks
import torch
import torch.nn.functional as F
from safetensors import safe_open

F64 = torch.float64


def randn(name, *shape, spread=1.0, shift=0.0):
    g = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return (shift + spread * torch.randn(shape, generator=g, dtype=F64)).to(torch.float32).to(F64)


def randint(name, high, *shape):
    g = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randint(0, high, shape, generator=g, dtype=torch.int64)


def save(path, tensors, metadata):
    """Own writer, because the library keeps metadata in a hash map whose order changes from run to run."""
    types = {torch.float64: ("F64", 0), torch.int64: ("I64", 1), torch.float32: ("F32", 2), torch.int32: ("I32", 3),
             torch.bool: ("BOOL", 4), torch.int8: ("I8", 5)}
    header, body = {"__metadata__": dict(sorted(metadata.items()))}, bytearray()
    # Widest types first: every tensor is then aligned to its own element size.
    for key, t in sorted(tensors.items(), key=lambda kv: (types[kv[1].dtype][1], kv[0])):
        data = t.detach().contiguous().numpy().tobytes()
        header[key] = {"dtype": types[t.dtype][0], "shape": list(t.shape),
                       "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    print(f"{path.name}: {path.stat().st_size} bytes, {len(tensors)} tensors")


def load(path):
    with safe_open(path, framework="pt") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, dict(f.metadata())


def hidden_keys(tq, tk, causal, lengths, starts):
    """Query i of sequence b sees the keys j < lengths[b] and, if causal, j <= starts[b] + i: (B or 1, 1, tq, tk)."""
    each = lambda x: x[:, None, None, None]
    hidden = torch.zeros(1, 1, tq, tk, dtype=torch.bool)
    if causal:
        hidden = torch.arange(tk) > torch.arange(tq)[:, None] + (tk - tq if starts is None else each(starts))
    return hidden if lengths is None else hidden | (torch.arange(tk) >= each(lengths))


def attention(q, k, v, lengths=None, starts=None, *, causal, scale, dropout=0.0, seed=0, offset=0):
    """(B, NH, T, HS). Causal: without starts the last query sees every key. A row that sees nothing is 0."""
    scores = scale * (q @ k.mT)
    hidden = hidden_keys(*scores.shape[-2:], causal, lengths, starts)
    scores = scores.masked_fill(hidden, -1e30 if lengths is not None else -math.inf)
    weights = scores.softmax(-1).masked_fill(hidden, 0)
    if dropout:
        (batch, heads, tq, tk) = scores.shape
        first = torch.tensor([tk - tq]) if starts is None else starts
        positions = first[:, None] + torch.arange(tq)
        weights = weights * masks.of_attention(batch, heads, positions, tk, dropout, seed, offset)
    return weights @ v


def self_attention(x, lengths=None, *, kv_heads, causal, scale):
    """(B, T, NH + 2 kv_heads, HS): the heads of queries, keys and values; (B, T, NH, HS)."""
    q, k, v = (part.transpose(1, 2) for part in x.split([x.shape[2] - 2 * kv_heads, kv_heads, kv_heads], 2))
    group = q.shape[1] // kv_heads
    k, v = (part.repeat_interleave(group, 1) for part in (k, v))
    return attention(q, k, v, lengths, causal=causal, scale=scale).transpose(1, 2)


def scaled(frequency, *, kind, factor, low_freq=None, high_freq=None, original_context=None):
    """linear: all by the factor. llama3: by the wave length, as its paper's code; in between a straight blend."""
    if kind == "linear":
        return frequency / factor
    length = 2 * math.pi / frequency
    blend = ((original_context / length - low_freq) / (high_freq - low_freq)).clamp(0, 1)
    return torch.lerp(frequency / factor, frequency, blend)


def rope(x, starts=None, *, theta, start, scaling=None, fraction=1):
    """(..., T, HS): pairs (x_2i, x_2i+1) as complex numbers, times e^(i angle)."""
    pairs = x.shape[-1] // 2
    turning = round(fraction * pairs)
    frequency = theta ** (-torch.arange(turning, dtype=F64) / turning)
    frequency = torch.cat([frequency, torch.zeros(pairs - turning, dtype=F64)])
    if scaling:
        frequency = scaled(frequency, **scaling)
    if starts is not None:
        start = starts.to(F64).view(-1, *[1] * (x.ndim - 2))
    angles = (start + torch.arange(x.shape[-2], dtype=F64))[..., None] * frequency
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def rope_heads(x, starts=None, *, heads=0, **options):
    """heads: x is (..., T, H, HS), of which the first so many are turned."""
    if heads == 0:
        return rope(x, starts, **options)
    turned = rope(x[..., :heads, :].transpose(-2, -3), starts, **options).transpose(-2, -3)
    return torch.cat([turned, x[..., heads:, :]], -2)


def scan(x, b=None, *, name="", dim):
    """Running products or maxima, or h[t] = x[t] h[t - 1] + b[t]."""
    if b is None:
        return x.cumprod(dim) if name == "cumprod" else torch.cummax(x, dim).values
    h = [b.select(dim, 0)]
    for t in range(1, b.shape[dim]):
        h.append(x.select(dim, t) * h[-1] + b.select(dim, t))
    return torch.stack(h, dim)


def conv1d(x, weight, bias=None, *, stride, before, after, dilation, groups, causal):
    reach = (weight.shape[2] - 1) * dilation if causal else 0
    return F.conv1d(F.pad(x, (before + reach, after)), weight, bias, stride, 0, dilation, groups)


def swiglu(x):
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


def cross_entropy(logits, targets, *, reduction, ignore_index=-100, label_smoothing=0.0):
    """Over the last dim. The mean is over the rows that are kept; an ignored row adds nothing, smoothing included."""
    rows = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=ignore_index,
                           label_smoothing=label_smoothing, reduction=reduction)
    return rows.view(targets.shape) if reduction == "none" else rows


def linear_cross_entropy(x, weight, targets, **options):
    return cross_entropy(x @ weight.T, targets, **options)


HEADER = pathlib.Path(__file__).resolve().parents[2] / "ops" / "pointwise.h"


def unary_functions():
    """{name: (lo, hi, cell)} of the list UnaryFns: a new function needs an entry there and nothing here."""
    text = HEADER.read_text()
    found = {}
    for name in re.search(r"using UnaryFns\s*=\s*TypeList<([^>]*)>", text)[1].split(","):
        struct = text[text.index(f"struct {name.strip()} {{"):]
        lo, hi, *cell = map(float, re.search(r"kDomain\{([^}]*)\}", struct)[1].split(","))
        found[re.search(r'kName\[\] = "(\w+)"', struct)[1]] = lo, hi, *(cell or [0.0])
    return found


UNARY = unary_functions()
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum, "pow": torch.pow,
}
COMPARE = {name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def with_number(f):
    """f(x, y), or with a number in the place of y, of x if it is on the left: maximum and minimum take tensors only."""
    def call(x, y=None, *, number=None, left=False):
        if number is not None:
            y = torch.tensor(number, dtype=x.dtype)
        return f(y, x) if left else f(x, y)
    return call


OPS = {
    "where": lambda condition, x, y: torch.where(condition.bool(), x, y),
    "masked_fill": lambda x, mask, value: x.masked_fill(mask.bool(), value),
    "clamp": torch.clamp,
    "matmul": lambda a, b, trans_a, trans_b: (a.mT if trans_a else a) @ (b.mT if trans_b else b),
    "linear": lambda x, weight, bias=None: F.linear(x, weight, bias),
    "fragment_weights": lambda x, selector: torch.softmax(
        (x.reshape(*x.shape[:-1], *selector.shape) * selector).sum(-1), -1),
    "index_matmul": lambda a, b, index, trans_b: torch.einsum("bk,bkn->bn", a, (b.mT if trans_b else b)[index]),
    "lora": lambda x, a, b, base=0: base + 0.75 * (x @ a @ b),
    "softmax": torch.softmax,
    "layer_norm": lambda x, weight=None, bias=None, *, eps: F.layer_norm(x, x.shape[-1:], weight, bias, eps),
    "rms_norm": lambda x, weight=None, *, eps: F.rms_norm(x, x.shape[-1:], weight, eps),  # eps inside the root
    "add_layer_norm": lambda x, r, weight=None, bias=None, *, eps: (
        x + r, F.layer_norm(x + r, x.shape[-1:], weight, bias, eps)),
    "add_rms_norm": lambda x, r, weight=None, *, eps: (x + r, F.rms_norm(x + r, x.shape[-1:], weight, eps)),
    "embedding": lambda ids, weight: weight[ids],
    "attention": attention,
    "self_attention": self_attention,
    "rope": rope_heads,
    "swiglu": swiglu,
    "cross_entropy": cross_entropy,
    "linear_cross_entropy": linear_cross_entropy,
    "sum": lambda x, dims, keepdim: x.sum(dims, keepdim=keepdim),  # dims [] means all
    "mean": lambda x, dims, keepdim: x.mean(dims, keepdim=keepdim),
    "max": lambda x, dims, keepdim: x.amax(dims, keepdim=keepdim),
    "min": lambda x, dims, keepdim: x.amin(dims, keepdim=keepdim),
    "var": lambda x, dims, keepdim, correction: x.var(dims or None, keepdim=keepdim, correction=correction),
    "cumsum": lambda x, dim: x.cumsum(dim),
    "log_softmax": F.log_softmax,
    "mse_loss": lambda x, target, reduction: F.mse_loss(x, target, reduction=reduction),
    "gather": lambda x, index, dim: x.gather(dim, index),
    "index_select": lambda x, index, dim: x.index_select(dim, index),
    "scatter_add": lambda x, index, src, dim: x.scatter_add(dim, index, src),
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, dim0, dim1: x.transpose(dim0, dim1),
    "slice": lambda x, dim, start, stop, step=1: x.movedim(dim, 0)[start:stop:step].movedim(0, dim),
    "flip": torch.flip,
    "chunk": lambda x, parts, dim: x.chunk(parts, dim),
    "unbind": torch.unbind,
    "logsumexp": lambda x, dims, keepdim: x.logsumexp(dims, keepdim),
    "scan": scan,
    "normalize": lambda x, p, dim, eps: F.normalize(x, p or math.inf, dim, eps),  # p 0 stands for infinity
    "linspace": lambda x, start, stop: x * torch.linspace(start, stop, x.shape[-1], dtype=F64),
    "sort": lambda x, dim, descending: tuple(torch.sort(x, dim=dim, descending=descending, stable=True)),
    "argsort": lambda x, dim, descending: torch.argsort(x, dim=dim, descending=descending, stable=True),
    "conv1d": conv1d,
    "l1_loss": F.l1_loss,
    "huber_loss": F.huber_loss,
    "expand": lambda x, shape: x.expand(shape),
    "split": lambda x, sizes, dim: x.split(sizes, dim),
    "sum_to": lambda x, shape: x.sum_to_size(shape),
    "concat": lambda *xs, dim: torch.cat(xs, dim),
    "tril": lambda x, diagonal: x.tril(diagonal),
    "triu": lambda x, diagonal: x.triu(diagonal),
    "pad": lambda x, widths, value: F.pad(x, [n for w in reversed(widths) for n in w], value=value),
    "index_add": lambda x, index, source, dim: x.index_add(dim, index, source),
    "bce_with_logits": lambda x, target, reduction: F.binary_cross_entropy_with_logits(x, target, reduction=reduction),
    "cast": lambda x, dtype: x.to(getattr(torch, dtype)).to(x.dtype),  # there and back
    "argmax": lambda x, dim: x.argmax(dim),
    "topk": lambda x, k, dim: tuple(x.topk(k, dim)),  # values in falling order, and their indices
}
OPS |= {name: getattr(torch, name, None) or getattr(F, name, None) for name in UNARY}
OPS |= {"gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu_squared": lambda x: F.relu(x).square(),
        "isru": lambda x: x * (x.square() + 1).rsqrt()}
OPS |= {f"linear_{name}": lambda x, weight, bias=None, f=OPS[name]: f(F.linear(x, weight, bias))
        for name in ("relu", "silu", "gelu", "gelu_tanh")}
OPS |= {name: with_number(f) for name, f in (BINARY | COMPARE).items()}


def run_op(case, inputs, attributes):
    out = OPS[case.split(".")[0]](*inputs, **attributes)
    return out if isinstance(out, tuple) else (out,)


def weighted(outs, weights):
    """Sum of the weighted outputs; weights {index of the output: tensor}."""
    return sum((outs[k] * w).sum() for k, w in weights.items())


def case(key, inputs, spread=1.0, shift=0.0, **attributes):
    """An input is a shape, of normal values, a tensor, or a function of its name."""
    def made(name, x):
        if isinstance(x, torch.Tensor):
            return x
        return x(name) if callable(x) else randn(name, *x, spread=spread, shift=shift)
    return key, [made(f"{key}.in{i}", x) for i, x in enumerate(inputs)], attributes


def ints(high, *shape):
    return lambda name: randint(name, high, *shape)


def uniform(name, *shape, lo, hi, cell=0.0):
    """In [lo, hi]; with cells, within a fifth of a cell from the middle of one: their edges are kinks."""
    g = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    x = lo + (hi - lo) * torch.rand(shape, generator=g, dtype=F64)
    if cell:
        x = ((x / cell).floor() + 0.5 + 0.4 * ((x / cell) % 1 - 0.5)) * cell
    return x.to(torch.float32).to(F64)


def pointwise_cases():
    for op, (lo, hi, cell) in UNARY.items():
        yield case(f"{op}.plain", [lambda name: uniform(name, 3, 7, lo=lo, hi=hi, cell=cell)])
    for op in BINARY:
        for variant, shapes in (("same", [(3, 5), (3, 5)]), ("broadcast", [(3, 1, 5), (4, 5)]),
                                ("scalar", [(3, 5), ()]), ("scalar_left", [(), (3, 5)])):
            key, inputs, attributes = case(f"{op}.{variant}", shapes)
            if op == "div":
                inputs[1] = (inputs[1] + 0.5 * inputs[1].sign()).to(torch.float32).to(F64)  # away from the pole
            if op == "pow":
                inputs[0] = (inputs[0].abs() + 0.25).to(torch.float32).to(F64)
            yield key, inputs, attributes
        for variant, left in (("number", False), ("number_left", True)):
            key, inputs, _ = case(f"{op}.{variant}", [(3, 5)])
            if op in ("div", "pow"):
                inputs[0] = (inputs[0].abs() + 0.25).to(torch.float32).to(F64)
            yield key, inputs, {"number": 0.75, "left": left}
    for op in COMPARE:
        for variant, shapes in (("same", [(3, 5), (3, 5)]), ("broadcast", [(3, 1, 5), (4, 5)])):
            key, inputs, attributes = case(f"{op}.{variant}", shapes)
            yield key, [x.round() for x in inputs], attributes  # some are equal
        key, inputs, _ = case(f"{op}.number", [(3, 5)])
        yield key, [x.round() for x in inputs], {"number": 1.0}
    for variant, shapes in (("same", [(3, 5)] * 3), ("broadcast", [(2, 1, 5), (3, 1), (5,)])):
        yield case(f"where.{variant}", [ints(2, *shapes[0]), *shapes[1:]])
    for variant, shape in (("same", (3, 5)), ("broadcast", (5,))):
        yield case(f"masked_fill.{variant}", [(3, 5), ints(2, *shape)], value=-2.5)
    for variant, bounds in (("both", {"min": -0.5, "max": 0.75}), ("min", {"min": 0.0}), ("max", {"max": 0.25})):
        yield case(f"clamp.{variant}", [(3, 7)], **bounds)


def plain_cases():
    for op, extra in (("sum", {}), ("mean", {}), ("max", {}), ("min", {}), ("var", {"correction": 1})):
        yield case(f"{op}.all", [(2, 3, 5)], dims=[], keepdim=False, **extra)
        yield case(f"{op}.dim1", [(2, 3, 5)], dims=[1], keepdim=False, **extra)
        yield case(f"{op}.dims02_keep", [(2, 3, 5)], dims=[0, 2], keepdim=True, **extra)
    yield case("var.population", [(3, 7)], dims=[-1], keepdim=False, correction=0)
    yield case("var.far_from_0", [(3, 7)], 1, 100, dims=[-1], keepdim=False, correction=1)
    yield case("cumsum.last", [(3, 7)], dim=-1)
    yield case("cumsum.middle", [(2, 3, 5)], dim=1)
    yield case("logsumexp.last", [(3, 7)], 2, dims=[-1], keepdim=False)
    yield case("logsumexp.outer_keep", [(2, 3, 5)], 2, dims=[0, 2], keepdim=True)
    yield case("scan.products", [(3, 7)], name="cumprod", dim=1)
    yield case("scan.maxima", [(9, 3)], name="cummax", dim=0)
    yield case("scan.recurrence", [(2, 11, 3), (2, 11, 3)], dim=1)
    for p in (1.0, 2.0, 3.0, 0.0):
        yield case(f"normalize.p{int(p)}", [(3, 7)], p=p, dim=-1, eps=1e-12)
    yield case("normalize.small", [(3, 4, 2)], p=2.0, dim=1, eps=2.0)  # some norms are less
    yield case("linspace.rising", [(8,)], start=-1.5, stop=2.0)
    yield case("linspace.one", [(1,)], start=3.0, stop=2.0)
    yield case("flip.last", [(2, 3, 5)], dims=[-1])
    yield case("flip.outer", [(2, 3, 5)], dims=[0, 2])
    yield case("chunk.last", [(2, 3, 6)], parts=3, dim=-1)
    yield case("unbind.middle", [(2, 3, 5)], dim=1)
    yield case("sort.last", [(2, 3, 7)], dim=-1, descending=False)
    yield case("sort.first", [(7, 3)], dim=0, descending=True)
    for descending in (False, True):
        key, inputs, attributes = case(f"argsort.{'falling' if descending else 'rising'}", [(3, 40)], dim=1,
                                       descending=descending)
        yield key, [inputs[0].round()], attributes  # many are equal
    yield case("reshape.merge", [(2, 3, 5)], shape=[6, 5])
    yield case("reshape.split", [(6, 5)], shape=[2, 3, 5])
    yield case("transpose.2d", [(3, 5)], dim0=0, dim1=1)
    yield case("transpose.outer", [(2, 3, 5)], dim0=0, dim1=2)
    yield case("slice.middle", [(2, 5, 3)], dim=1, start=1, stop=4)
    yield case("slice.steps", [(2, 8, 3)], dim=1, start=2, stop=8, step=3)
    yield case("slice.last_dim", [(3, 7)], dim=1, start=4, stop=7)
    yield case("expand.column", [(3, 1)], shape=[3, 5])
    yield case("expand.new_dims", [(1, 5)], shape=[2, 3, 5])
    yield case("expand.number", [()], shape=[2, 3])
    yield case("split.last", [(2, 3, 7)], sizes=[2, 4, 1], dim=-1)
    yield case("split.middle", [(2, 5, 3)], sizes=[3, 2], dim=1)
    yield case("split.one_part", [(4, 3)], sizes=[4], dim=0)
    yield case("sum_to.row", [(2, 3, 5)], shape=[1, 5])
    yield case("sum_to.column", [(2, 3, 5)], shape=[3, 1])
    yield case("sum_to.number", [(2, 3)], shape=[])
    yield case("sum_to.itself", [(2, 3)], shape=[2, 3])
    yield case("tril.plain", [(2, 4, 5)], diagonal=0)
    yield case("tril.below", [(4, 3)], diagonal=-1)
    yield case("triu.plain", [(2, 4, 5)], diagonal=0)
    yield case("triu.above", [(3, 5)], diagonal=2)
    yield case("pad.zeros", [(2, 3, 5)], widths=[[1, 0], [0, 2], [3, 1]], value=0.0)
    yield case("pad.value", [(3, 5)], widths=[[0, 1], [2, 0]], value=-1.5)
    yield case("cast.bfloat16", [(3, 7)], dtype="bfloat16")
    yield case("cast.float32", [(3, 7)], dtype="float32")
    yield case("concat.dim1", [(2, 3, 4), (2, 1, 4)], dim=1)
    yield case("concat.three", [(1, 5), (3, 5), (2, 5)], dim=0)
    yield case("argmax.last", [(2, 3, 7)], dim=-1)
    yield case("topk.last", [(2, 3, 7)], k=3, dim=-1)


def index_cases():
    for variant, dim, x, index in (("last", -1, (3, 7), (3, 5)), ("first", 0, (4, 5), (6, 5)),
                                   ("part", 1, (3, 4, 5), (2, 6, 3))):  # index smaller than x beside dim
        yield case(f"gather.{variant}", [x, ints(x[dim], *index)], dim=dim)
        yield case(f"scatter_add.{variant}", [x, ints(x[dim], *index), index], dim=dim)
    index = torch.tensor([2, 0, 2, 1, 2])
    for variant, dim in (("first", 0), ("middle", 1), ("last", -1)):
        yield case(f"index_select.{variant}", [(3, 4, 5), index], dim=dim)
        source = [3, 4, 5]
        source[dim] = 5
        yield case(f"index_add.{variant}", [(3, 4, 5), index, source], dim=dim)


LLAMA3 = {"kind": "llama3", "factor": 8.0, "low_freq": 1.0, "high_freq": 4.0, "original_context": 64}


def network_cases():
    for variant, a, b in (("2d", (3, 5), (5, 4)), ("batched", (2, 3, 4, 5), (2, 3, 5, 6)),
                          ("broadcast", (2, 1, 4, 5), (3, 5, 2)), ("shared_b", (2, 4, 5), (5, 3))):
        for ta, tb in ((False, False), (True, False), (False, True), (True, True)):
            stored = [(*s[:-2], s[-1], s[-2]) if swap else s for s, swap in ((a, ta), (b, tb))]
            yield case("matmul." + variant + "_ta" * ta + "_tb" * tb, stored, trans_a=ta, trans_b=tb)
    yield case("linear.bias", [(2, 3, 5), (4, 5), (4,)])
    yield case("lora.delta", [(2, 3, 5), (5, 3), (3, 4)])
    yield case("lora.base", [(2, 3, 5), (5, 3), (3, 4), (2, 3, 4)])
    yield case("linear.no_bias", [(2, 3, 5), (4, 5)])
    yield case("fragment_weights.rows", [(2, 3, 20), (4, 5)])
    yield case("fragment_weights.one_element", [(3, 4), (4, 1)])
    rows = torch.tensor([3, 0, 3, 1, 4, 3, 0])
    yield case("index_matmul.plain", [(7, 4), (5, 4, 6), rows], trans_b=False)
    yield case("index_matmul.transposed", [(7, 4), (5, 6, 4), rows], trans_b=True)
    for activation in ("relu", "silu", "gelu", "gelu_tanh"):
        yield case(f"linear_{activation}.bias", [(2, 3, 5), (4, 5), (4,)])
        yield case(f"linear_{activation}.no_bias", [(2, 3, 5), (4, 5)])
    plain = {"stride": 1, "before": 0, "after": 0, "dilation": 1, "groups": 1, "causal": False}
    for variant, x, weight, options in (
            ("plain", (2, 3, 8), (4, 3, 3), {}), ("causal", (2, 3, 6), (4, 3, 3), {"dilation": 2, "causal": True}),
            ("stride", (2, 3, 9), (2, 3, 4), {"stride": 3, "before": 1, "after": 2}),
            ("groups", (2, 4, 8), (6, 2, 2), {"groups": 2, "dilation": 3, "stride": 2}),
            ("depthwise", (2, 4, 6), (4, 1, 3), {"groups": 4, "causal": True}),
            ("multiplied", (2, 3, 6), (6, 1, 2), {"groups": 3, "after": 1})):
        yield case("conv1d." + variant, [x, weight, weight[:1]], **plain | options)
        yield case("conv1d." + variant + "_no_bias", [x, weight], **plain | options)
    yield case("softmax.last", [(3, 7)], 2, dim=-1)
    yield case("log_softmax.last", [(3, 7)], 2, dim=-1)
    yield case("log_softmax.middle", [(2, 3, 5)], 2, dim=1)
    yield case("log_softmax.large", [(3, 7)], 2, 1000, dim=-1)
    yield case("softmax.large", [(3, 7)], 2, 1000, dim=-1)  # overflows unless the maximum is taken off first
    for op, extra in (("layer_norm", ["weight", "bias"]), ("layer_norm", ["weight"]), ("layer_norm", []),
                      ("rms_norm", ["weight"]), ("rms_norm", [])):
        variant = "_".join(extra) or "plain"
        yield case(f"{op}.{variant}", [(2, 3, 7)] + [(7,)] * len(extra), eps=1e-5)
        yield case(f"add_{op}.{variant}", [(2, 3, 7)] * 2 + [(7,)] * len(extra), eps=1e-5)
    yield case("embedding.repeats", [torch.tensor([[3, 0, 3, 10, 7], [7, 3, 1, 0, 10]]), (11, 4)])
    yield case("rope.plain", [(2, 3, 5, 8)], theta=10000.0, start=0)
    yield case("rope.start", [(7, 6)], theta=100.0, start=12345)
    yield case("rope.one_pair", [(2, 4, 2)], theta=10000.0, start=1)
    yield case("rope.linear", [(2, 5, 8)], theta=10000.0, start=3, scaling={"kind": "linear", "factor": 4.0})
    yield case("rope.llama3", [(2, 5, 16)], theta=500000.0, start=30, scaling=LLAMA3)
    yield case("rope.starts", [(3, 2, 5, 8), torch.tensor([7, 0, 12345])], theta=100.0, start=0)
    yield case("rope.fraction", [(2, 5, 12)], theta=50.0, start=2, fraction=0.4)
    yield case("rope.heads", [(2, 5, 4, 6)], theta=100.0, start=3, heads=3)
    yield case("swiglu.plain", [(2, 3, 10)], 3)
    yield case("swiglu.vector", [(6,)], 3)
    for name in ("causal", "causal_tail", "full", "full_tail"):
        shapes = [(2, 3, 2 if "tail" in name else 5, 4), (2, 3, 5, 4), (2, 3, 5, 4)]
        yield case("attention." + name, shapes, causal="causal" in name, scale=0.5)  # 1 / sqrt(4)
    lengths, starts = torch.tensor([5, 0, 3]), torch.tensor([0, 3, 1])
    for name, causal, extra in (("lengths", False, [lengths]), ("lengths_causal", True, [lengths]),
                                ("lengths_starts", True, [lengths, starts]),
                                ("starts", True, [torch.full_like(lengths, 5), starts])):
        yield case("attention." + name, [(3, 2, 2, 4), (3, 2, 5, 4), (3, 2, 5, 4), *extra], causal=causal, scale=0.5)
    for name, shapes, extra in (  # kernels for a few queries, and for panels and blocks of them
            ("alone", [(2, 3, 2, 4)] + [(2, 3, 5, 4)] * 2, []),
            ("blocks", [(1, 2, 37, 2)] + [(1, 2, 140, 2)] * 2, []),
            ("starts", [(3, 2, 6, 4)] + [(3, 2, 10, 4)] * 2, [torch.tensor([10, 0, 7]), starts])):
        yield case("attention.dropped_" + name, shapes + extra, causal=True, scale=0.5, dropout=0.3, seed=2**40 + 7,
                   offset=2**32 - 3)
    yield case("self_attention.causal", [(2, 5, 6, 4)], kv_heads=2, causal=True, scale=0.5)
    yield case("self_attention.groups", [(2, 5, 6, 4)], kv_heads=1, causal=False, scale=0.5)
    yield case("self_attention.lengths", [(3, 5, 3, 4), lengths], kv_heads=1, causal=True, scale=0.5)


def loss_cases():
    for reduction in ("mean", "sum", "none"):
        yield case(f"mse_loss.{reduction}", [(2, 3, 5), (2, 3, 5)], reduction=reduction)
        yield case(f"l1_loss.{reduction}", [(2, 3, 5), (2, 3, 5)], reduction=reduction)
        yield case(f"huber_loss.{reduction}", [(2, 3, 5), (2, 3, 5)], delta=0.75, reduction=reduction)
        yield case(f"bce_with_logits.{reduction}", [(2, 3, 5), lambda name: uniform(name, 2, 3, 5, lo=0, hi=1)], 3,
                   reduction=reduction)
    ignore, smooth = {"ignore_index": -1}, {"label_smoothing": 0.1}
    for variant, reduction, options in (
            ("mean", "mean", {}), ("sum", "sum", {}), ("none", "none", {}), ("large", "mean", {}),
            ("ignore_mean", "mean", ignore), ("ignore_sum", "sum", ignore), ("ignore_none", "none", ignore),
            ("smooth", "mean", smooth), ("smooth_sum", "sum", smooth), ("smooth_ignore", "mean", ignore | smooth)):
        made = case(f"cross_entropy.{variant}", [(2, 5, 11), ints(11, 2, 5)], 2, 1000 if variant == "large" else 0,
                    reduction=reduction, **options)
        head = case(f"linear_cross_entropy.{variant}", [(2, 5, 3), (11, 3), ints(11, 2, 5)], 2, reduction=reduction,
                    **options)
        if "ignore_index" in options:
            for targets in made[1][1], head[1][2]:
                targets[0, 1] = targets[1, 0] = targets[1, 4] = -1
        yield made
        if variant != "large":
            yield head


def make_ops():
    tensors, metadata = {}, {}
    cases = itertools.chain(pointwise_cases(), plain_cases(), index_cases(), network_cases(), loss_cases())
    for key, inputs, attributes in cases:
        metadata[key] = json.dumps(attributes)
        tensors |= {f"{key}.in{i}": x.clone() for i, x in enumerate(inputs)}
        leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        outs = run_op(key, leaves, attributes)
        tensors |= {f"{key}.out{i}": y.detach() for i, y in enumerate(outs)}
        weights = {k: randn(f"{key}.w{k or ''}", *y.shape) for k, y in enumerate(outs) if y.is_floating_point()}
        tensors |= {f"{key}.w{k or ''}": w for k, w in weights.items()}
        if weights:
            weighted(outs, weights).backward()
            tensors |= {f"{key}.grad{i}": x.grad for i, x in enumerate(leaves) if x.requires_grad}
    return tensors, metadata


def check_ops(path):
    """From the file alone: outputs again, and gradients by finite differences."""
    tensors, metadata = load(path)
    for key, text in metadata.items():
        attributes = json.loads(text)
        inputs = [tensors[f"{key}.in{i}"] for i in range(sum(k.startswith(key + ".in") for k in tensors))]
        for i, y in enumerate(run_op(key, inputs, attributes)):
            assert torch.equal(y, tensors[f"{key}.out{i}"]), key
        names = [f"{key}.w{k or ''}" for k in range(8)]
        weights = {k: tensors[name] for k, name in enumerate(names) if name in tensors}
        if not weights:
            continue
        leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        objective = lambda *xs: weighted(run_op(key, xs, attributes), weights)
        # Of a cast to fewer bits, a staircase, differences are not the gradient.
        assert key.startswith("cast.") or torch.autograd.gradcheck(objective, leaves, eps=1e-6, atol=1e-7, rtol=1e-6), key
        objective(*leaves).backward()
        for i, x in enumerate(leaves):
            if x.requires_grad:
                torch.testing.assert_close(x.grad, tensors[f"{key}.grad{i}"], rtol=1e-13, atol=1e-14)
    check_attention(tensors)
    print(f"  checked: {len(metadata)} cases read back, gradients equal to finite differences")


def check_attention(t):
    """Against torch's own, which places the causal mask otherwise when there are fewer queries than keys."""
    tail = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()
    for variant, how in (("causal", {"is_causal": True}), ("causal_tail", {"attn_mask": tail}), ("full", {}),
                         ("full_tail", {})):
        key = f"attention.{variant}"
        expected = F.scaled_dot_product_attention(*(t[f"{key}.in{i}"] for i in range(3)), **how)
        torch.testing.assert_close(t[key + ".out0"], expected, rtol=1e-12, atol=1e-13)
    for variant in ("lengths", "lengths_causal", "lengths_starts", "starts"):
        key = f"attention.{variant}"
        q, k, v, lengths, *starts = (t[f"{key}.in{i}"] for i in range(5) if f"{key}.in{i}" in t)
        hidden = hidden_keys(2, 5, variant != "lengths", lengths, starts[0] if starts else None)
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden)
        torch.testing.assert_close(t[key + ".out0"], expected.nan_to_num(), rtol=1e-12, atol=1e-13)


def adamw(parameters, lr, beta1, beta2, eps, weight_decay):
    """weight_decay applies to the parameters with two dims, the others get none. The plain per-tensor loop."""
    groups = [{"params": [p for p in parameters if (p.ndim == 2) == decayed], "weight_decay": weight_decay * decayed}
              for decayed in (True, False)]
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, foreach=False)


def descend(optimiser, loss_at, after=lambda step: None):
    """Losses of ten steps, each before its step."""
    losses = []
    for step in range(1, 11):
        optimiser.zero_grad()
        loss = loss_at(step)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
        after(step)
    return torch.stack(losses)


# Standard deviation 0.2 where such models use 0.02: with widths this small, logits, attention scores and gradients
# would else be so near to zero that a wrong mask or scale would hardly show. Norm gains are 1 + 0.1 N(0, 1), not 1,
# so that a gain left out shows. Both kinds of projection onto the residual stream: 0.2 / sqrt(2 * blocks).
INIT_STD = 0.2
GPT_ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
GPTS = {
    "gpt_doc004": {"vocab": 61, "context": 16, "width": 20, "heads": 4, "blocks": 2, "batch": 3, "norm": "rms_norm",
                   "norm_eps": 1e-5, "norm_bias": False, "linear_bias": False, "activation": "gelu_exact",
                   "positions": "learned", "tied_head": False},
    "gpt_nano": {"vocab": 53, "context": 12, "width": 24, "heads": 3, "blocks": 2, "batch": 2, "norm": "layer_norm",
                 "norm_eps": 1e-5, "norm_bias": False, "linear_bias": False, "activation": "gelu_exact",
                 "positions": "learned", "tied_head": True},
    "gpt_doc003": {"vocab": 41, "context": 10, "width": 16, "heads": 4, "kv_heads": 4, "blocks": 2, "batch": 2,
                   "hidden": 24, "norm": "rms_norm", "norm_eps": 1e-5, "norm_bias": False, "linear_bias": False,
                   "activation": "swiglu", "positions": "rope", "rope_theta": 10000.0, "tied_head": False},
    "gpt_gqa": {"vocab": 37, "context": 9, "width": 24, "heads": 6, "kv_heads": 2, "blocks": 2, "batch": 2,
                "hidden": 20, "norm": "rms_norm", "norm_eps": 1e-6, "norm_bias": False, "linear_bias": False,
                "activation": "swiglu", "positions": "rope", "rope_theta": 100.0, "tied_head": False},
    "gpt_heads": {"vocab": 41, "context": 10, "width": 20, "heads": 3, "kv_heads": 1, "head_dim": 8, "blocks": 2,
                  "batch": 2, "hidden": 24, "norm": "rms_norm", "norm_eps": 1e-6, "norm_bias": False,
                  "linear_bias": False, "qkv_bias": True, "qk_norm": True, "activation": "swiglu", "positions": "rope",
                  "rope_theta": 100.0, "rope_scaling": LLAMA3, "tied_head": True},
    "gpt_track3": {"vocab": 39, "context": 10, "width": 24, "heads": 2, "blocks": 2, "batch": 2, "norm": "rms_norm",
                   "norm_eps": 1e-6, "norm_bias": False, "linear_bias": True, "qk_norm": True, "qk_norm_affine": False,
                   "attn_scale": 0.7, "embedding_norm": True, "head_bias": True, "logit_cap": 1.5,
                   "activation": "relu2", "positions": "rope", "rope_theta": 50.0, "rope_fraction": 0.5,
                   "tied_head": False},
    "gpt_gpt2": {"vocab": 43, "context": 12, "width": 18, "heads": 3, "blocks": 2, "batch": 2, "norm": "layer_norm",
                 "norm_eps": 1e-5, "norm_bias": True, "linear_bias": True, "activation": "gelu_tanh",
                 "positions": "learned", "tied_head": True},
}


def gpt_init(name, c):
    d, hidden = c["width"], c.get("hidden", 4 * c["width"])
    size = c.get("head_dim", d // c["heads"])
    kv, all_heads = size * c.get("kv_heads", c["heads"]), size * c["heads"]
    shapes = {"wte.weight": (c["vocab"], d)}
    if c["positions"] == "learned":
        shapes["wpe.weight"] = (c["context"], d)

    def add(key, *shape, bias=False):
        shapes[key + ".weight"] = shape
        if bias:
            shapes[key + ".bias"] = shape[:1]

    for i in range(c["blocks"]):
        h = f"h.{i}."
        for norm in ("ln_1", "ln_2"):
            add(h + norm, d, bias=c["norm_bias"])
        for part, out in (("q", all_heads), ("k", kv), ("v", kv)):
            add(f"{h}attn.{part}", out, d, bias=c["linear_bias"] or c.get("qkv_bias", False))
        for part in ("q_norm", "k_norm") if c.get("qk_norm") and c.get("qk_norm_affine", True) else ():
            add(f"{h}attn.{part}", size)
        add(h + "attn.proj", d, all_heads, bias=c["linear_bias"])
        for part in ("gate", "up") if c["activation"] == "swiglu" else ("fc",):
            add(f"{h}mlp.{part}", hidden, d, bias=c["linear_bias"])
        add(f"{h}mlp.proj", d, hidden, bias=c["linear_bias"])
    if c.get("embedding_norm"):
        add("ln_emb", d, bias=c["norm_bias"])
    add("ln_f", d, bias=c["norm_bias"])
    if not c["tied_head"]:
        add("lm_head", c["vocab"], d, bias=c.get("head_bias", False))

    out = {}
    for key, shape in shapes.items():
        std = INIT_STD / math.sqrt(2 * c["blocks"]) if ".proj." in key else INIT_STD
        vector, gain = len(shape) == 1, len(shape) == 1 and key.endswith("weight")
        out[key] = randn(f"{name}.{key}", *shape, spread=0.1 if vector else std, shift=1.0 if gain else 0.0)
    return out


def gpt_logits(w, tokens, c):
    batch, time = tokens.shape
    linear = lambda x, key: F.linear(x, w[key + ".weight"], w.get(key + ".bias"))
    norm = lambda x, key: OPS[c["norm"]](x, *(w[f"{key}.{part}"] for part in ("weight", "bias") if f"{key}.{part}" in w),
                                         eps=c["norm_eps"])
    heads = lambda x: x.view(batch, time, -1, c.get("head_dim", c["width"] // c["heads"])).transpose(1, 2)
    turn = lambda x: (rope(x, theta=c["rope_theta"], start=0, scaling=c.get("rope_scaling"),
                           fraction=c.get("rope_fraction", 1))
                      if c["positions"] == "rope" else x)
    x = w["wte.weight"][tokens]
    if c["positions"] == "learned":
        x = x + w["wpe.weight"][:time]
    if c.get("embedding_norm"):
        x = norm(x, "ln_emb")
    for i in range(c["blocks"]):
        h = f"h.{i}."
        y = norm(x, h + "ln_1")
        q, k, v = (heads(linear(y, f"{h}attn.{part}")) for part in "qkv")
        if c.get("qk_norm"):
            q, k = norm(q, h + "attn.q_norm"), norm(k, h + "attn.k_norm")
        shared = c["heads"] // c.get("kv_heads", c["heads"])  # each key head serves that many query heads in a row
        k, v = (z.repeat_interleave(shared, dim=1) for z in (turn(k), v))
        y = attention(turn(q), k, v, causal=True, scale=c.get("attn_scale", 1 / math.sqrt(q.shape[-1])))
        x = x + linear(y.transpose(1, 2).reshape(batch, time, -1), h + "attn.proj")
        y = norm(x, h + "ln_2")
        if c["activation"] == "swiglu":
            y = F.silu(linear(y, h + "mlp.gate")) * linear(y, h + "mlp.up")
        elif c["activation"] == "relu2":
            y = F.relu(linear(y, h + "mlp.fc")).square()
        else:
            y = F.gelu(linear(y, h + "mlp.fc"), approximate="tanh" if c["activation"] == "gelu_tanh" else "none")
        x = x + linear(y, h + "mlp.proj")
    logits = F.linear(norm(x, "ln_f"), w.get("lm_head.weight", w["wte.weight"]), w.get("lm_head.bias"))
    cap = c.get("logit_cap", 0)
    return cap * logits * (logits.square() + cap * cap).rsqrt() if cap else logits


def gpt_loss(w, tokens, targets, c):
    return cross_entropy(gpt_logits(w, tokens, c), targets, reduction="mean")


def make_gpt(name, c):
    text = randint(name + ".text", c["vocab"], 11, c["batch"], c["context"] + 1)
    tokens, targets = text[..., :-1].contiguous(), text[..., 1:].contiguous()
    init = gpt_init(name, c)
    w = {key: value.clone().requires_grad_() for key, value in init.items()}
    logits = gpt_logits(w, tokens[0], c)
    loss = cross_entropy(logits, targets[0], reduction="mean")
    loss.backward()
    out = {"tokens": tokens, "targets": targets, "logits": logits.detach(), "loss": loss.detach()}
    out |= {"init." + key: value for key, value in init.items()}
    out |= {"grad." + key: value.grad.clone() for key, value in w.items()}
    losses = descend(adamw(w.values(), **GPT_ADAMW), lambda step: gpt_loss(w, tokens[step], targets[step], c))
    out |= {"losses": losses} | {"final." + key: value.detach() for key, value in w.items()}
    print(f"{name}: logits std {out['logits'].std():.3f}, loss {out['loss']:.4f}, "
          f"losses {losses[0]:.4f} .. {losses[-1]:.4f}, {sum(p.numel() for p in w.values())} parameters")
    return out, {"config": json.dumps(c), "adamw": json.dumps(GPT_ADAMW)}


def check_gpt(path):
    """Gradients by gradcheck on single weights, and by central differences along a random direction on all of them."""
    t, metadata = load(path)
    c = json.loads(metadata["config"])
    w = {key.removeprefix("init."): value for key, value in t.items() if key.startswith("init.")}
    loss_at = lambda weights: gpt_loss(weights, t["tokens"][0], t["targets"][0], c)
    torch.testing.assert_close(loss_at(w), t["loss"], rtol=1e-14, atol=0)
    logits = t["logits"]
    by_hand = (logits.exp().sum(-1).log() - logits.gather(-1, t["targets"][0][..., None])[..., 0]).mean()
    torch.testing.assert_close(by_hand, t["loss"], rtol=1e-13, atol=0)
    for key in ("h.0.ln_1.weight", "h.1.ln_2.weight", "ln_f.weight"):
        gain = w[key].clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x: loss_at(w | {key: x}), (gain,), eps=1e-5, atol=1e-9, rtol=1e-6), key
    for key, value in w.items():
        direction, h = randn("direction." + key, *value.shape), 1e-5
        slope = (loss_at(w | {key: value + h * direction}) - loss_at(w | {key: value - h * direction})) / (2 * h)
        torch.testing.assert_close(slope, (t["grad." + key] * direction).sum(), rtol=1e-5, atol=1e-7)
        assert not torch.equal(t["final." + key], value), key
    print(f"  checked: read back, gradients of all {len(w)} weights equal to finite differences")


ADAM_FORMS = {
    "adam": {"decay": "l2", "weight_decay": 0.0, "eps_placement": "corrected"},
    "adam_l2": {"decay": "l2", "weight_decay": 0.5, "eps_placement": "corrected"},
    "adamw": {"decay": "before", "weight_decay": 0.5, "eps_placement": "corrected"},
    "uncorrected_after": {"decay": "after", "weight_decay": 0.5, "eps_placement": "uncorrected"},
    "uncorrected_before": {"decay": "before", "weight_decay": 0.5, "eps_placement": "uncorrected"},
}
ADAM_FORM_NUMBERS = {"lr": 3e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-3}  # an eps that is seen


def make_adam_forms():
    n = ADAM_FORM_NUMBERS
    init, grads = randn("adam_forms.init", 6, 4), randn("adam_forms.grad", 10, 6, 4, spread=0.01)
    tensors = {"init": init, "grad": grads}
    for form, f in ADAM_FORMS.items():
        p = init.clone().requires_grad_()
        if f["eps_placement"] == "corrected":
            cls = torch.optim.Adam if f["decay"] == "l2" else torch.optim.AdamW
            optimiser = cls([p], lr=n["lr"], betas=(n["beta1"], n["beta2"]), eps=n["eps"],
                            weight_decay=f["weight_decay"], foreach=False)
            for g in grads:
                p.grad = g.clone()
                optimiser.step()
            tensors[form + ".final"] = p.detach().clone()
            continue
        w, m, v = init.clone(), torch.zeros_like(init), torch.zeros_like(init)
        for t, g in enumerate(grads, start=1):
            if f["decay"] == "before":
                w = w - n["lr"] * f["weight_decay"] * w
            m = n["beta1"] * m + (1 - n["beta1"]) * g
            v = n["beta2"] * v + (1 - n["beta2"]) * g * g
            rate = n["lr"] * math.sqrt(1 - n["beta2"] ** t) / (1 - n["beta1"] ** t)
            w = w - rate * m / (v.sqrt() + n["eps"])
            if f["decay"] == "after":
                w = w - n["lr"] * f["weight_decay"] * w
        tensors[form + ".final"] = w
    return tensors, {"config": json.dumps({"forms": ADAM_FORMS, "numbers": n})}


def check_adam_forms(path):
    """All forms differ, so that a test cannot mistake one for another."""
    tensors, _ = load(path)
    finals = [tensors[form + ".final"] for form in ADAM_FORMS]
    for a, b in itertools.combinations(finals, 2):
        assert (a - b).abs().max() > 1e-4, "two forms gave the same"


OPTIMIZER_PARAMETERS = {"tall.weight": (7, 5), "wide.weight": (4, 9), "row.weight": (1, 6), "q.weight": (4, 4),
                        "k.weight": (2, 4), "v.weight": (2, 4), "tall.bias": (7,), "head.weight": (3, 4)}
OPTIMIZER_LRS = (1.0, 1.0, 0.5, 0.5, 0.25, 0.25)  # times lr, in each step
OPTIMIZERS = {
    "sgd": {"lr": 0.1},
    "sgd_decay": {"lr": 0.1, "weight_decay": 0.2},
    "sgd_momentum": {"lr": 0.1, "momentum": 0.9},
    "sgd_dampening": {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.2},
    "sgd_nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.2},
    # Patterns with what replaces the other settings; lr is a factor. The first that matches counts.
    "adamw_groups": {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "groups": [
        ["*.bias", {"lr": 2.0, "weight_decay": 0.0}], ["tall*", {"lr": 0.5}],
        ["*w*.weight", {"beta1": 0.7, "beta2": 0.9, "weight_decay": 0.3}]]},
    "sgd_groups": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "groups": [
        ["*.bias", {"lr": 2.0, "weight_decay": 0.0}], ["wide*", {"lr": 0.0}], ["*w*.weight", {"weight_decay": 0.3}]]},
    # No gradient of this parameter in these steps, counted from 0.
    "sgd_skip": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "skip": {"wide.weight": [0, 2, 3]}},
    "muon": {"lr": 0.02, "momentum": 0.95, "nesterov": True, "weight_decay": 0.0, "scale": "original"},
    "muon_rms": {"lr": 0.01, "momentum": 0.9, "nesterov": False, "weight_decay": 0.1, "scale": "rms"},
}


def optimizer_of(case, c, params):
    """Parameters of one or no dimension, and the head, have no part in Muon."""
    if case.startswith("muon"):
        return torch.optim.Muon([p for n, p in params.items() if p.ndim == 2 and n != "head.weight"], lr=c["lr"],
                                momentum=c["momentum"], nesterov=c["nesterov"], weight_decay=c["weight_decay"],
                                adjust_lr_fn={"original": "original", "rms": "match_rms_adamw"}[c["scale"]])
    groups = []
    for name, p in params.items():
        own = next((o for pattern, o in c.get("groups", []) if fnmatch.fnmatchcase(name, pattern)), {})
        g = {"params": [p], "lr": c["lr"] * own.get("lr", 1.0),
             "weight_decay": own.get("weight_decay", c.get("weight_decay", 0.0))}
        if case.startswith("adamw"):
            g["betas"] = (own.get("beta1", c["beta1"]), own.get("beta2", c["beta2"]))
        groups.append(g)
    if case.startswith("adamw"):
        return torch.optim.AdamW(groups, eps=c["eps"], foreach=False)
    return torch.optim.SGD(groups, **{k: c[k] for k in ("momentum", "dampening", "nesterov") if k in c}, foreach=False)


def make_optimizers():
    tensors = {}
    for name, shape in OPTIMIZER_PARAMETERS.items():
        tensors |= {name + ".init": randn(f"optimizers.{name}", *shape),
                    name + ".grad": randn(f"optimizers.{name}.grad", len(OPTIMIZER_LRS), *shape)}
    for case, c in OPTIMIZERS.items():
        for kind in ("f32", "f64") + (("bf16",) if case.startswith("muon") else ()):
            dtype = torch.float32 if kind == "f32" else F64
            params = {n: tensors[n + ".init"].to(dtype).requires_grad_() for n in OPTIMIZER_PARAMETERS}
            params = {n: p.detach().clone().requires_grad_() for n, p in params.items()}
            optimiser = optimizer_of(case, c, params)
            lrs = [g["lr"] for g in optimiser.param_groups]
            values = {n: [] for n in params}
            for step, factor in enumerate(OPTIMIZER_LRS):
                for g, lr in zip(optimiser.param_groups, lrs):
                    g["lr"] = lr * factor
                for n, p in params.items():
                    skipped = step in c.get("skip", {}).get(n, [])
                    p.grad = None if skipped else tensors[n + ".grad"][step].to(dtype)
                if case.startswith("muon") and kind != "bf16":
                    with unittest.mock.patch.object(torch, "bfloat16", dtype):
                        optimiser.step()
                else:
                    optimiser.step()
                for n, p in params.items():
                    values[n].append(p.detach().clone())
            for group in optimiser.param_groups:
                for p in group["params"]:
                    name = next(n for n, x in params.items() if x is p)
                    tensors[f"{case}.{kind}.{name}"] = torch.stack(values[name])
    return tensors, {"config": json.dumps({"cases": OPTIMIZERS, "lrs": OPTIMIZER_LRS})}


def check_optimizers(path):
    """SGD's formula and Muon's update written out; all cases differ."""
    t, _ = load(path)
    for case, c in OPTIMIZERS.items():
        if not case.startswith("sgd") or "groups" in c or "skip" in c:
            continue
        w, b = t["tall.weight.init"].clone(), None
        for step, g in enumerate(t["tall.weight.grad"]):
            g = g + c.get("weight_decay", 0.0) * w
            if "momentum" in c:
                b = g if b is None else c["momentum"] * b + (1 - c.get("dampening", 0.0)) * g
                g = g + c["momentum"] * b if c.get("nesterov") else b
            w = w - c["lr"] * OPTIMIZER_LRS[step] * g
            torch.testing.assert_close(t[f"{case}.f64.tall.weight"][step], w, rtol=1e-12, atol=1e-12)
    x = t["tall.weight.grad"][0]
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    update = (t["tall.weight.init"] - t["muon.f64.tall.weight"][0]) / (OPTIMIZERS["muon"]["lr"] * math.sqrt(7 / 5))
    singular = torch.diagonal(u.T @ update @ v.T)
    torch.testing.assert_close(u.T @ update @ v.T, torch.diag(singular), rtol=0, atol=1e-12)  # the directions of x
    assert 0.6 < singular.min() and singular.max() < 1.3, singular
    finals = [t[f"{case}.f64.tall.weight"][-1] for case in OPTIMIZERS if case != "sgd_skip"]
    for a, b in itertools.combinations(finals, 2):
        assert (a - b).abs().max() > 1e-4, "two cases gave the same"


LORA = {"rank": 3, "alpha": 5.0, "lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}


def lora(x, t, a, b):
    return F.linear(x, t["weight"], t["bias"]) + LORA["alpha"] / LORA["rank"] * (x @ a @ b)


def make_lora():
    t = {name: randn("lora." + name, *shape) for name, shape in {
        "weight": (11, 7), "bias": (11,), "x": (2, 5, 7), "w": (2, 5, 11), "a": (7, 3), "b": (3, 11),
        "inputs": (10, 2, 5, 7), "target": (10, 2, 5, 11)}.items()}
    x, a, b = (t[name].clone().requires_grad_() for name in ("x", "a", "b"))
    y = lora(x, t, a, b)
    (y * t["w"]).sum().backward()
    t |= {"y": y.detach(), "grad.x": x.grad, "grad.a": a.grad, "grad.b": b.grad}
    a, b = t["a"].clone().requires_grad_(), torch.zeros(3, 11, dtype=F64, requires_grad=True)

    def keep(step):
        if step in (1, 2, 10):
            t.update({f"step{step}.a": a.detach().clone(), f"step{step}.b": b.detach().clone()})

    optimiser = adamw([a, b], **{k: v for k, v in LORA.items() if k not in ("rank", "alpha")})
    t["losses"] = descend(
        optimiser, lambda step: F.mse_loss(lora(t["inputs"][step - 1], t, a, b), t["target"][step - 1]), keep)
    return t, {"config": json.dumps(LORA)}


def check_lora(path):
    """Against the merged weight and the gradients written out: dB = s (x A)^T dy, dA = x^T (s dy B^T)."""
    t, _ = load(path)
    s, x, dy = LORA["alpha"] / LORA["rank"], t["x"].reshape(-1, 7), t["w"].reshape(-1, 11)
    merged = t["weight"] + s * (t["a"] @ t["b"]).T
    close = lambda got, expected: torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    close(t["y"].reshape(-1, 11), x @ merged.T + t["bias"])
    close(t["grad.b"], s * (x @ t["a"]).T @ dy)
    close(t["grad.a"], x.T @ (s * dy @ t["b"].T))
    close(t["grad.x"].reshape(-1, 7), dy @ merged)
    # At first only the decay moves A, as B is 0.
    close(t["step1.a"], t["a"] * (1 - LORA["lr"] * LORA["weight_decay"]))
    assert not torch.equal(t["step1.b"], torch.zeros(3, 11, dtype=F64))


def quantize(x, dim=None):
    """Codes and magnitudes: each operation in float32, ties to even; where all is 0, the codes are."""
    absmax = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    return torch.round(127 * (x / torch.where(absmax > 0, absmax, torch.ones(())))), absmax


def make_switchback():
    t = {name: randn("switchback." + name, *shape).float() for name, shape in {
        "x": (3, 5, 23), "weight": (41, 23), "bias": (41,), "g": (3, 5, 41)}.items()}
    t["x"][1, 2] = 0
    t["g"][2, 0] = 0
    t["x"][0, 0, 0], t["x"][0, 0, 1:4] = 127 * 2.0, torch.tensor([1.0, 3.0, 5.0])  # 0.5, 1.5 and 2.5: ties
    x, w, b, g = t["x"].reshape(15, 23), t["weight"], t["bias"].double(), t["g"].reshape(15, 41)

    def product(a, b):  # codes and magnitudes of rows of a and of b
        return (a[0].double() @ b[0].double().T) * a[1].double() * b[1].double().reshape(1, -1) / 127 ** 2

    xq, gq = quantize(x, 1), quantize(g, 1)
    t |= {"rows.codes": xq[0].to(torch.int8), "rows.absmax": xq[1].reshape(-1)}
    for mode in ("global", "vector_wise", "memory_efficient"):
        rows = 1 if mode == "vector_wise" else None
        kept = xq[0].double() * xq[1].double() / 127 if mode == "memory_efficient" else x.double()
        t |= {f"{mode}.y": (product(xq, quantize(w, rows)) + b).reshape(3, 5, 41),
              f"{mode}.dx": product(gq, quantize(w.T, rows)).reshape(3, 5, 23),
              f"{mode}.dw": g.double().T @ kept, f"{mode}.db": g.double().sum(0)}
    return t, {}


def check_switchback(path):
    """Near the plain layer: within a few per cent of the largest value."""
    t, _ = load(path)
    x, w, g = (t[name].double() for name in ("x", "weight", "g"))
    plain = {"y": F.linear(x, w, t["bias"].double()), "dx": g @ w, "dw": g.reshape(15, 41).T @ x.reshape(15, 23),
             "db": g.sum((0, 1))}
    for mode in ("global", "vector_wise", "memory_efficient"):
        for name, expected in plain.items():
            assert (t[f"{mode}.{name}"] - expected).abs().max() < 0.03 * expected.abs().max(), (mode, name)


FRAGMENTED_LR = 1e-2


def fragmented(t, x, hard):
    """By the definition: each fragment's own product, weighted by the softmax of its score, or the selected one alone."""
    parts = x.reshape(len(x), *t["selector"].shape)
    p = torch.softmax((parts * t["selector"]).sum(-1), -1)
    if hard:
        k = p.argmax(-1)
        y = torch.stack([parts[i, k[i]] @ t["experts"][k[i]] for i in range(len(x))])
        rest = parts * (torch.arange(len(t["selector"])) != k[:, None])[..., None]
    else:
        y = (p[..., None] * torch.einsum("bfd,fdo->bfo", parts, t["experts"])).sum(1)
        rest = parts * (1 - p)[..., None]
    return y + t["expert_bias"] + rest.reshape(x.shape) @ t["compressor"].T @ t["expander"].T + t["compressed_bias"]


def make_fragmented():
    shapes = {"selector": (4, 6), "experts": (4, 6, 10), "compressor": (3, 24), "expander": (10, 3),
              "expert_bias": (10,), "compressed_bias": (10,)}
    t = {name: randn("fragmented." + name, *shape, spread=0.4) for name, shape in shapes.items()}
    t |= {name: randn("fragmented." + name, 7, n) for name, n in (("x", 24), ("target", 10), ("w", 10))}
    t["x"][2] = 0
    t["x"][:, 18:] = t["selector"][3] * -torch.ones(7, 1) * (torch.arange(7) != 2)[:, None]
    expected = {}
    for mode, hard in (("soft", False), ("hard", True)):
        leaves = {name: t[name].clone().requires_grad_() for name in (*shapes, "x")}
        y = fragmented(leaves, leaves["x"], hard)
        (y * t["w"]).sum().backward()
        expected |= {f"{mode}.y": y.detach()}
        expected |= {f"{mode}.grad.{name}": p.grad for name, p in leaves.items() if p.grad is not None}
        leaves = {name: t[name].clone().requires_grad_() for name in shapes}
        optimiser = torch.optim.Adam(leaves.values(), lr=FRAGMENTED_LR, foreach=False)
        losses = descend(optimiser, lambda step: F.mse_loss(fragmented(leaves, t["x"], hard), t["target"]))
        expected |= {f"{mode}.losses": losses}
        expected |= {f"{mode}.final.{name}": p.detach().clone() for name, p in leaves.items()}
    return t | expected, {"config": json.dumps({"lr": FRAGMENTED_LR, "steps": 10})}


def check_fragmented(path):
    """What the file says of rows and fragments; hard selection of one fragment by an index, not a loop over rows."""
    t, _ = load(path)
    p = torch.softmax((t["x"].reshape(7, 4, 6) * t["selector"]).sum(-1), -1)
    k = p.argmax(-1)
    assert k[2] == 0 and torch.equal(p[2], torch.full((4,), 0.25, dtype=F64)) and 3 not in k and len(set(k.tolist())) == 3
    assert "hard.grad.selector" not in t and torch.equal(t["hard.final.selector"], t["selector"])
    assert not t["hard.grad.experts"][3].any() and torch.equal(t["hard.final.experts"][3], t["experts"][3])
    selected = torch.einsum("bd,bdo->bo", t["x"].reshape(7, 4, 6)[torch.arange(7), k], t["experts"][k])
    kept = t["x"] * (torch.arange(24) // 6 != k[:, None])
    y = selected + kept @ (t["expander"] @ t["compressor"]).T + t["expert_bias"] + t["compressed_bias"]
    torch.testing.assert_close(y, t["hard.y"], rtol=1e-12, atol=1e-13)
    print("  checked: ties, a fragment that is never selected, and the hard form written another way")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # sums in one order
    print("torch", torch.__version__)
    jobs = {"ops": (make_ops, check_ops), "adam_forms": (make_adam_forms, check_adam_forms),
            "lora": (make_lora, check_lora), "optimizers": (make_optimizers, check_optimizers),
            "switchback": (make_switchback, check_switchback), "fragmented": (make_fragmented, check_fragmented)}
    jobs |= {name: (lambda name=name, c=c: make_gpt(name, c), check_gpt) for name, c in GPTS.items()}
    for name, (make, check) in jobs.items():
        path = folder / f"{name}.safetensors"
        save(path, *make())
        check(path)


if __name__ == "__main__":
    main()
