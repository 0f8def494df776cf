"""A GPT of PyTorch's fused functions: norm, one qkv GEMM, scaled_dot_product_attention, GELU or SwiGLU. For
gpt_timeit/compare_torch.py, gpt_training/compare_torch.py, dist/compare_ddp.py."""
import math


def gpt(torch, blocks, heads, width, vocabulary, context, bias=False, dropout=0.0, rms=False, tied=True, scaled=False,
        hidden=0, norm=None, block=None, loss=None):
    """The model; forward(tokens, targets) returns the loss. rms: RMSNorm; tied: the head's weight is the token
    table; scaled: residual projections start smaller by sqrt(2 blocks); hidden: SwiGLU of this width, and interleaved
    rotary positions; norm, block: make a module in place of those here; loss: of logits and targets."""
    nn, F = torch.nn, torch.nn.functional
    norm = norm or ((lambda: nn.RMSNorm(width, eps=1e-5)) if rms else (lambda: nn.LayerNorm(width, bias=bias)))
    loss = loss or (lambda logits, targets: F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()))
    linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=bias)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = norm(), norm()
            self.qkv, self.proj = linear(width, 3 * width), linear(width, width)
            self.fc, self.down_proj = linear(width, 2 * hidden or 4 * width), linear(hidden or 4 * width, width)

        def forward(self, x, *angles):
            def turned(x):
                (cos, sin), a, b = angles, x[..., ::2], x[..., 1::2]
                return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)

            b, t, c = x.shape
            q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in self.qkv(self.norm_1(x)).split(c, -1))
            if hidden:
                q, k = turned(q), turned(k)
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
            x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, t, c)), dropout)
            y = self.fc(self.norm_2(x))
            return x + F.dropout(self.down_proj(F.silu(y[..., :hidden]) * y[..., hidden:] if hidden else F.gelu(y)),
                                 dropout)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, width), None if hidden else nn.Embedding(context, width)
            self.h = nn.ModuleList((block or Block)() for _ in range(blocks))
            self.ln_f = norm()
            if not tied:
                self.head = linear(width, vocabulary)
            half = width // heads // 2
            angles = torch.outer(torch.arange(context).float(), 10000.0 ** (-torch.arange(half).float() / half))
            self.register_buffer("angles", torch.stack((angles.cos(), angles.sin())) if hidden else None)
            for key, p in self.named_parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02 / (math.sqrt(2 * blocks) if scaled and "proj" in key else 1))

        def forward(self, tokens, targets, blocks=None):
            t = tokens.shape[1]
            x = self.wte(tokens) if hidden else F.dropout(self.wte(tokens) + self.wpe.weight[:t], dropout)
            for block in blocks or self.h:
                x = block(x, *(self.angles[:, :t] if hidden else ()))
            return loss(F.linear(self.ln_f(x), (self.wte if tied else self.head).weight), targets)

    return Gpt()
