"""Writes blocks.safetensors, for tests/ops/test_blocks.cpp: blocks of each format and their values.

    python make_blocks.py [--out DIR]

Made with Python 3.11, numpy 2.4, gguf 0.19.0, torch 2.15.0 (CPU) and bitsandbytes 0.50.2. `<format>.blocks` u8 (24,
bytes) and `<format>.values` f32 (24, elements) of gguf: zeros, all ones, 0x88, and scales -65504, -0, 2^-24 and -1
first, then random bytes with finite scales. `nf4.x` f32 (16, 128), with its `codes`, `absmax` and `dequantised` of
bitsandbytes: zeros, a largest element that is negative, ties, tiny and huge rows first.
"""

import argparse
import pathlib

import bitsandbytes.functional
import gguf
import numpy as np
import torch
from safetensors.numpy import save_file

# Where a block has its f16 scales.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
       0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def random_blocks(rng, kind, halves):
    b = rng.integers(0, 256, (24, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at in halves:
        h = np.ascontiguousarray(b[:, at:at + 2]).view(np.uint16).reshape(-1).copy()
        h[(h & 0x7C00) == 0x7C00] &= 0x83FF  # infinities and NaN become subnormal
        b[:, at:at + 2] = h.view(np.uint8).reshape(-1, 2)
    b[0], b[1], b[2] = 0, 255, 0x88
    for at in halves:
        for i, v in ((1, -65504.0), (2, -0.0), (3, 2.0**-24), (4, -1.0)):
            b[i, at:at + 2] = np.array([v], np.float16).view(np.uint8)
    return b


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    rng, out = np.random.default_rng(20261129), {}
    for name, halves in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        b = random_blocks(rng, kind, halves)
        out[name.lower() + ".blocks"], out[name.lower() + ".values"] = b, gguf.quants.dequantize(b, kind)
    v = np.array(NF4, np.float32)
    bounds = ((v[1:] + v[:-1]) / np.float32(2)).astype(np.float32)
    x = (rng.standard_normal((16, 128)) * 0.02).astype(np.float32)
    x[0], x[1, :64], x[2, 3] = 0, -0.25, -5
    x[3, :64] = np.concatenate([[1], bounds, np.zeros(48)])
    x[4] *= 1e-37
    x[5] *= np.float32(1e38)
    q, s = bitsandbytes.functional.quantize_4bit(torch.from_numpy(x), blocksize=64, quant_type="nf4",
                                                 compress_statistics=False)
    out |= {"nf4.values_of_codes": v, "nf4.bounds": bounds, "nf4.x": x, "nf4.codes": q.numpy().reshape(16, 64),
            "nf4.absmax": s.absmax.numpy().reshape(16, 2),
            "nf4.dequantised": bitsandbytes.functional.dequantize_4bit(q, s).numpy()}
    save_file({k: np.ascontiguousarray(a) for k, a in out.items()}, parser.parse_args().out / "blocks.safetensors")


if __name__ == "__main__":
    main()
