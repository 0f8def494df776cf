#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/nn/lora.h>
#include <tapegrad/ops/binary.h>
#include <tapegrad/ops/dropout.h>
#include <tapegrad/ops/lora.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <cmath>

namespace tg::nn {

void LoraOptions::validate(int64_t in, int64_t out) const {
  TG_CHECK(rank >= 1, value,
           "[lora] rank is {}. It must be 1 or more. Choose a rank, or leave the layer without an adapter.", rank);
  TG_CHECK(rank <= std::min(in, out), value,
           "[lora] rank is {} for a layer from {} to {}. It must be at most {}: beyond that, the two thin matrices can "
           "express no more. Choose a smaller rank, or leave the layer out.",
           rank, in, out, std::min(in, out));
  TG_CHECK(alpha > 0 && std::isfinite(alpha), value,
           "[lora] alpha is {}. It must be above 0 and finite: the delta is scaled by alpha / rank. A usual value is "
           "twice the rank.",
           alpha);
  TG_CHECK(dropout >= 0 && dropout < 1, value, "[lora] dropout is {}. It must be in [0, 1); 0 is none.", dropout);
}

namespace {
const LoraOptions& valid(const LoraOptions& o, int64_t in, int64_t out) {
  o.validate(in, out);
  return o;
}
}  // namespace

LoraDelta::LoraDelta(const Params& p, int64_t in, int64_t out, const LoraOptions& o)
    : Layer{p.scope()},
      a(p.get("lora_a", {in, valid(o, in, out).rank}, Init::normal(1 / std::sqrt(double(o.rank))))),
      b(p.get("lora_b", {o.rank, out}, Init::constant(0))),
      scale(o.alpha / double(o.rank)),
      dropout(o.dropout) {}

Tensor LoraDelta::forward(const Tensor& x, Rng* rng, const Tensor& base) const {
  NameScope here = enter();
  const int64_t in = a.size(0);
  TG_CHECK(x && x.ndim() >= 1 && x.size(-1) == in, shape,
           "[lora] x is {}, and A {}. The last size of x must be A's first, {}.", describe(x), a, in);
  const Tensor a_like = parameter_as(a, x.dtype()), b_like = parameter_as(b, x.dtype());
  if (!rng || dropout == 0) return tg::lora(x, a_like, b_like, scale, base);  // (..., out)
  Shape shape = x.shape();
  shape.back() = b.size(1);
  const Tensor rows = reshape(x, {x.numel() / in, in});                       // (N, in)
  const Tensor h = tg::dropout(matmul(rows, a_like), dropout, *rng) * scale;  // (N, r): cheaper to scale than (N, out)
  const Tensor y = reshape(matmul(h, b_like), shape);
  return base ? base + y : y;
}
Tensor LoraDelta::forward_lazy(const Tensor& x, Rng* rng, const Tensor& base) const {
  LazyScope lazy;
  return forward(x, rng, base);
}
Tensor LoraDelta::weight() const { return matmul(b, a, {.trans_a = true, .trans_b = true}) * scale; }

LoraLinear::LoraLinear(Linear base, const Params& p, const LoraOptions& o) : linear_(std::move(base)) {
  TG_CHECK(!linear_.adapter, state,
           "[lora] the layer of '{}' has an adapter already. A layer can have one. Make a new model, or continue with "
           "the existing adapter.",
           linear_.weight.label());
  LoraDelta delta(p, linear_.weight.size(1), linear_.weight.size(0), o);
  NameScope layer = linear_.enter(), lora("lora");
  delta.scope = current_scope();
  linear_.weight.requires_grad_(false);
  if (linear_.bias) linear_.bias.requires_grad_(false);
  linear_.adapter = std::make_shared<LoraAdapter>(LoraAdapter{std::move(delta)});
  structure_changed();
}

void LoraLinear::merge() {
  TG_CHECK(!merged(), state,
           "[lora] '{}' is merged already. Merging twice would add the delta twice. Call unmerge() first.",
           linear_.weight.label());
  NoGradScope off;
  NameScope here = linear_.enter();
  const Tensor& w = linear_.weight;
  const Tensor before = w.detach();
  w.assign((w.to(delta().a.dtype()) + delta().weight()).to(w.dtype()));
  linear_.adapter->unmerged = before;
  structure_changed();
}
void LoraLinear::unmerge() {
  TG_CHECK(merged(), state, "[lora] '{}' is not merged. There is nothing to undo. Call merge() first.",
           linear_.weight.label());
  linear_.weight.assign(linear_.adapter->unmerged);
  linear_.adapter->unmerged = {};
  structure_changed();
}

}  // namespace tg::nn
