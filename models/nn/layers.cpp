#include <tapegrad/models/gpt/kv_cache.h>
#include <tapegrad/models/io/nearest.h>
#include <tapegrad/models/nn/layers.h>
#include <tapegrad/ops/attention.h>
#include <tapegrad/ops/dropout.h>
#include <tapegrad/ops/embedding.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/norm.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <array>

namespace tg {
namespace {
constexpr std::array<std::string_view, 2> kNorms{"layer_norm", "rms_norm"};
constexpr std::array<std::string_view, 3> kActivations{"gelu", "gelu_tanh", "silu"};

template <size_t N>
size_t place(std::string_view what, std::string_view name, const std::array<std::string_view, N>& all) {
  const size_t i = size_t(std::find(all.begin(), all.end(), name) - all.begin());
  TG_CHECK(i < N, value, "[{}] '{}' is not known.{} The names are {}.", what, name, did_you_mean(name, all),
           listed(all));
  return i;
}
}  // namespace

std::string_view name_of(NormKind k) { return kNorms[size_t(k)]; }
std::string_view name_of(Activation a) { return kActivations[size_t(a)]; }
NormKind norm_from_name(std::string_view name) { return NormKind(place("norm", name, kNorms)); }
Activation activation_from_name(std::string_view name) { return Activation(place("activation", name, kActivations)); }

namespace nn {
namespace {
Tensor activate(Activation a, const Tensor& x) {
  switch (a) {
    case Activation::gelu: return gelu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::silu: break;
  }
  return silu(x);
}
}  // namespace

Tensor dropout_if(const Tensor& x, double p, Rng* rng) { return rng && p > 0 ? dropout(x, p, *rng) : x; }

Linear::Linear(const Params& p, int64_t in, int64_t out, LinearOptions o)
    : Layer{p.scope()}, weight(p.get("weight", {out, in}, o.init)) {
  if (o.bias) bias = p.get("bias", {out}, Init::constant(0));
}
Tensor Linear::forward(const Tensor& x) const {
  InScope here = enter();
  return bias ? linear(x, weight, bias) : linear(x, weight);
}

Embedding::Embedding(const Params& p, int64_t entries, int64_t width, Init init)
    : Layer{p.scope()}, table(p.get("weight", {entries, width}, init)) {}
Tensor Embedding::forward(const Tensor& ids) const {
  InScope here = enter();
  return embedding(ids, table);
}

Norm::Norm(const Params& p, int64_t width, NormOptions o)
    : Layer{p.scope()}, kind(o.kind), eps(o.eps), weight(p.get("weight", {width}, Init::constant(1))) {
  if (o.bias && kind == NormKind::layer_norm) bias = p.get("bias", {width}, Init::constant(0));
}
Tensor Norm::forward(const Tensor& x) const {
  InScope here = enter();
  return kind == NormKind::layer_norm ? layer_norm(x, weight, bias, eps) : rms_norm(x, weight, eps);
}

SelfAttention::SelfAttention(const Params& p, int64_t width, const BlockOptions& o)
    : Layer{p.scope()}, heads(o.heads), dropout(o.dropout) {
  TG_CHECK(heads >= 1 && width % heads == 0, value,
           "[attention] a width of {} cannot be split among {} heads. The width must be a multiple of the heads.",
           width, heads);
  qkv = Linear(p.at("qkv"), width, 3 * width, {.bias = o.bias, .init = o.init});
  proj = Linear(p.at("proj"), width, width, {.bias = o.bias, .init = o.init_proj});
}
Tensor SelfAttention::forward(const Tensor& x, const LayerContext& c) const {
  InScope here = enter();
  TG_CHECK(x.ndim() == 3, shape, "[attention] the input must be (B, T, C), got {}. Add sizes of 1 with reshape().", x);
  const int64_t b = x.size(0), t = x.size(1), width = x.size(2);
  auto split_heads = [&](const Tensor& y) { return transpose(reshape(y, {b, t, heads, width / heads}), 1, 2); };
  const Tensors parts = split(qkv.forward(x), {width, width, width});  // (B, T, C) x 3, views
  const Tensor q = split_heads(parts[0]);                              // (B, NH, T, HS)
  KvCache::Pair kv{split_heads(parts[1]), split_heads(parts[2])};      // (B, NH, T, HS) x 2
  if (c.cache) kv = c.cache->append(c.layer, kv);                      // (B, NH, past + T, HS) x 2
  const Tensor y = attention(q, kv.k, kv.v);                           // (B, NH, T, HS)
  const Tensor merged = reshape(transpose(y, 1, 2), {b, t, width});    // (B, T, C)
  return dropout_if(proj.forward(merged), dropout, c.rng);
}

Mlp::Mlp(const Params& p, int64_t width, const BlockOptions& o)
    : Layer{p.scope()}, activation(o.activation), dropout(o.dropout) {
  const int64_t ff = o.ff_width ? o.ff_width : 4 * width;
  fc = Linear(p.at("fc"), width, ff, {.bias = o.bias, .init = o.init});
  proj = Linear(p.at("proj"), ff, width, {.bias = o.bias, .init = o.init_proj});
}
Tensor Mlp::forward(const Tensor& x, const LayerContext& c) const {
  InScope here = enter();
  Tensor h = fc.forward(x);  // (..., F)
  h = activate(activation, h);
  return dropout_if(proj.forward(h), dropout, c.rng);
}

}  // namespace nn
}  // namespace tg
