"""The masks of dropout that the library draws, written again from ops/training/dropout.h and ops/attention.h: factors 0 or 1 / (1 - p)."""

import torch

LOW = 0xFFFFFFFF


def philox(x, y, z, w, seed):
    """Philox4x32-10 (Salmon et al., SC'11) of counters, int64 tensors of 32-bit numbers; four such tensors."""
    k0, k1 = seed & LOW, seed >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * x, 0xCD9E8D57 * z  # modulo 2^64
        x, y, z, w = (b >> 32 & LOW) ^ y ^ k0, b & LOW, (a >> 32 & LOW) ^ w ^ k1, a & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return x, y, z, w


def factors(words, p):
    """A word is dropped if its upper 24 bits, as a fraction, are less than p."""
    return (words >> 8 >= p * 2**24).double() / (1 - p)


def of_elements(shape, p, seed, offset):
    """dropout(): element i in row-major order has word i % 4 of block offset + i / 4."""
    n = torch.Size(shape).numel()
    block = offset + torch.arange((n + 3) // 4)
    zero = torch.zeros_like(block)
    words = torch.stack(philox(block & LOW, block >> 32, zero, zero, seed), -1)
    return factors(words.flatten()[:n].reshape(shape), p)


def of_attention(batch, heads, queries, keys, p, seed, offset):
    """attention(): key j has word j % 4 of the block with the counter (offset + b NH + h, position of the query, j / 4).
    queries: positions, (1 or batch, Tq). The result is (batch, heads, Tq, keys)."""
    head = (offset + torch.arange(batch * heads)).reshape(batch, heads, 1, 1)
    quad = torch.arange((keys + 3) // 4)
    counter = torch.broadcast_tensors(head & LOW, head >> 32, queries[:, None, :, None] & LOW, quad)
    words = torch.stack(philox(*counter, seed), -1)
    return factors(words.flatten(-2)[..., :keys], p)
