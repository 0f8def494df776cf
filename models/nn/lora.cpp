#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/nn/lora.h>
#include <tapegrad/ops/binary.h>
#include <tapegrad/ops/composed.h>
#include <tapegrad/ops/lora.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/training/dropout.h>

#include <algorithm>
#include <cmath>

namespace tg::nn {
namespace {
LoraRows checked(const Linear& base, LoraRows rows, const LoraOptions& o) {
  const std::string_view name = base.name();
  const int64_t out = base.out();
  if (rows.count == 0) rows.count = out;
  TG_CHECK(rows.begin >= 0 && rows.count >= 0 && rows.begin <= out && rows.count <= out - rows.begin, value,
           "[lora] rows from {} on, {} of them, are given for '{}', which has {}. They must be within the weight.",
           rows.begin, rows.count, name, out);
  if (!base.adapter) return rows;
  TG_CHECK(!base.adapter->unmerged, state,
           "[lora] the layer of '{}' is merged. A delta more would be lost. Call unmerge() first.", name);
  for (const auto& p : base.adapter->parts) {
    const int64_t end = p.row + p.delta.b.size(1);
    TG_CHECK(rows.begin >= end || rows.begin + rows.count <= p.row, state,
             "[lora] the layer of '{}' has an adapter already, on rows {} to {}, and rows {} to {} are given. Rows can "
             "have one adapter. Make a new model, or continue with the existing adapter.",
             name, p.row, end - 1, rows.begin, rows.begin + rows.count - 1);
    TG_CHECK(p.delta.dropout == o.dropout, value,
             "[lora] dropout is {}, and another adapter of the layer of '{}' has {}. They run as one. Give both the "
             "same dropout.",
             o.dropout, name, p.delta.dropout);
  }
  return rows;
}
LoraDelta delta_of(const Linear& base, const Params& p, const LoraOptions& o, const LoraRows& rows) {
  LoraDelta delta(p, base.in(), rows.count, o);
  NameScope layer = base.enter(), lora("lora");
  delta.scope = detail::current_scope();
  return delta;
}
}  // namespace

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

double LoraOptions::scale() const { return alpha / (rslora ? std::sqrt(double(rank)) : double(rank)); }

LoraDelta::LoraDelta(const Params& p, int64_t in, int64_t out, const LoraOptions& o)
    : Layer{p.scope()}, scale(o.scale()), dropout(o.dropout) {
  o.validate(in, out);
  a = p.get("lora_a", {in, o.rank}, Init::normal(1 / std::sqrt(double(o.rank))));
  b = p.get("lora_b", {o.rank, out}, Init::constant(0));
}

Tensor LoraDelta::forward(const Tensor& x, Rng* rng, const Tensor& base) const {
  if (base && base.dtype() != x.dtype()) return base + forward(x, rng, {}).to(base.dtype());
  NameScope here = enter();
  const int64_t in = a.size(0);
  TG_CHECK(x && x.ndim() >= 1 && x.size(-1) == in, shape,
           "[lora] x is {}, and A {}. The last size of x must be A's first, {}.", detail::describe(x), a, in);
  const Tensor a_like = detail::cast_parameter(a, x.dtype()), b_like = detail::cast_parameter(b, x.dtype());
  if (!rng || dropout == 0) return tg::lora(x, a_like, b_like, scale, base);  // (..., out)
  Shape shape = x.shape();
  shape.back() = b.size(1);
  const Tensor rows = reshape(x, {x.numel() / in, in});                       // (N, in)
  const Tensor h = tg::dropout(matmul(rows, a_like), dropout, *rng) * scale;  // (N, r): cheaper to scale than (N, out)
  const Tensor y = reshape(matmul(h, b_like), shape);
  return base ? base + y : y;
}
Tensor LoraDelta::weight() const { return matmul(b, a, {.trans_a = true, .trans_b = true}) * scale; }

Tensor LoraAdapter::forward(const Tensor& x, Rng* rng, const Tensor& base) const {
  const LoraDelta& first = parts.front().delta;
  const int64_t out = base.size(-1);
  if (parts.size() == 1 && first.b.size(1) == out) return first.forward(x, rng, base);
  std::vector<Tensor> a, b;
  for (const Part& p : parts) {
    a.push_back(p.delta.a);
    b.push_back(pad(p.delta.b * p.delta.scale, {{0, 0}, {p.row, out - p.row - p.delta.b.size(1)}}));
  }
  LoraDelta one = first;
  one.a = concat(a, 1), one.b = concat(b), one.scale = 1;  // (in, sum r), (sum r, out)
  return one.forward(x, rng, base);
}
Tensor LoraAdapter::merged(const Tensor& weight) const {
  const Tensor w = weight.to(parts.front().delta.a.dtype());
  std::vector<Tensor> rows;
  int64_t row = 0;
  for (const Part& p : parts) {
    const int64_t end = p.row + p.delta.b.size(1);
    if (row < p.row) rows.push_back(slice(w, 0, row, p.row));
    rows.push_back(slice(w, 0, p.row, end) + p.delta.weight());
    row = end;
  }
  if (row < w.size(0)) rows.push_back(slice(w, 0, row, w.size(0)));
  return (rows.size() == 1 ? rows[0] : concat(rows)).to(weight.dtype());
}

LoraLinear::LoraLinear(Linear base, const Params& p, const LoraOptions& o, LoraRows given)
    : linear_(std::move(base)), row_(given.begin), delta_(delta_of(linear_, p, o, checked(linear_, given, o))) {
  if (linear_.weight) linear_.weight.requires_grad_(false);
  if (linear_.bias) linear_.bias.requires_grad_(false);
  if (!linear_.adapter) linear_.adapter = std::make_shared<LoraAdapter>();
  auto& parts = linear_.adapter->parts;
  parts.insert(std::ranges::upper_bound(parts, row_, {}, &LoraAdapter::Part::row), {row_, delta_});
  tg::structure_changed();
}

void LoraLinear::merge() {
  detail::forbid_in_trace("lora", "an adapter is merged");
  const auto alone = linear_.adapter->user.use_within("lora", "adapter");
  TG_CHECK(!merged(), state,
           "[lora] '{}' is merged already. Merging twice would add the delta twice. Call unmerge() first.",
           linear_.name());
  TG_CHECK(!linear_.blocks, state,
           "[lora] '{}' is in blocks of {}, which cannot hold a merged delta. Load the model with its weights "
           "dequantized, or keep the adapter apart.",
           linear_.name(), detail::layout_of_block(linear_.blocks->parts[0].format).name);
  NoGradScope off;
  NameScope here = linear_.enter();
  const Tensor& w = linear_.weight;
  const Tensor before = w.detach();
  w.assign(linear_.adapter->merged(w));
  linear_.adapter->unmerged = before;
  tg::structure_changed();
}
void LoraLinear::unmerge() {
  detail::forbid_in_trace("lora", "an adapter is unmerged");
  const auto alone = linear_.adapter->user.use_within("lora", "adapter");
  TG_CHECK(merged(), state, "[lora] '{}' is not merged. There is nothing to undo. Call merge() first.", linear_.name());
  linear_.weight.assign(linear_.adapter->unmerged);
  linear_.adapter->unmerged = {};
  tg::structure_changed();
}

}  // namespace tg::nn
