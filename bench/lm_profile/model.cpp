#include "lm_profile/model.h"

#include <tapegrad/core/check.h>
#include <tapegrad/ops/ops.h>

#include <cmath>
#include <limits>

namespace tg::bench {
namespace {
const Init kOnes = Init::constant(1);

// cos and sin of position * theta^(-2i / HS).
std::pair<Tensor, Tensor> angles(const GptConfig& c, Device device) {
  const int64_t half = c.width / c.heads / 2;
  std::vector<float> cosines, sines;
  for (int64_t t = 0; t < c.context; ++t)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = double(t) * std::pow(c.rope_theta, -double(i) / double(half));
      cosines.push_back(float(std::cos(angle)));
      sines.push_back(float(std::sin(angle)));
    }
  return {tensor(cosines, {c.context, half}, device), tensor(sines, {c.context, half}, device)};
}
}  // namespace

DocumentLm::DocumentLm(const Params& p, const GptConfig& c, Scores scores) : config_(c), scores_(scores) {
  c.validate();
  TG_CHECK(c.positions == Positions::rope && c.norm == NormKind::rms_norm && c.norm_affine &&
               c.activation == Activation::swiglu && !c.bias && !c.tied_head && !c.head_bias && c.ff_width > 0 &&
               std::max({c.dropout, c.attn_dropout, c.resid_dropout, c.embd_dropout}) == 0 &&
               (c.kv_heads == 0 || c.kv_heads == c.heads),
           value,
           "[document_lm] the configuration is of another form. It must be that of document 003: rope, rms_norm with "
           "weights, swiglu, a head of its own, no biases, no dropout, no shared keys. Take "
           "model_preset(\"cs336-2.7b\") and change its sizes.");
  const int64_t width = c.width, ff = c.ff_width;
  const auto matrix = [](const Params& at, int64_t out, int64_t in) {
    return at.get("weight", {out, in}, Init::xavier());
  };
  wte_ = p.at("wte").get("weight", {c.vocab_size, width}, Init::truncated_normal(1));
  for (int64_t i = 0; i < c.layers; ++i) {
    const Params h = p.at("h").at(i), attn = h.at("attn"), mlp = h.at("mlp");
    blocks_.push_back({.ln_1 = h.at("ln_1").get("weight", {width}, kOnes),
                       .q = matrix(attn.at("q"), width, width),
                       .k = matrix(attn.at("k"), width, width),
                       .v = matrix(attn.at("v"), width, width),
                       .proj = matrix(attn.at("proj"), width, width),
                       .ln_2 = h.at("ln_2").get("weight", {width}, kOnes),
                       .gate = matrix(mlp.at("gate"), ff, width),
                       .up = matrix(mlp.at("up"), ff, width),
                       .down = matrix(mlp.at("proj"), width, ff)});
  }
  ln_f_ = p.at("ln_f").get("weight", {width}, kOnes);
  head_ = matrix(p.at("lm_head"), c.vocab_size, width);
  std::tie(cos_, sin_) = angles(c, p.device());
}

Tensor DocumentLm::norm(const Tensor& x, const Tensor& gain) const {
  return gain * (x * rsqrt(mean(x * x, {-1}, {.keepdim = true}) + config_.norm_eps));
}
Tensor DocumentLm::rotated(const Tensor& x) const {  // (B, NH, T, HS)
  Shape pairs = x.shape();
  pairs.back() /= 2;
  pairs.push_back(2);
  const Tensor p = reshape(x, pairs), first = slice(p, -1, 0, 1), second = slice(p, -1, 1, 2);  // (B, NH, T, HS/2, 1)
  const int64_t t = x.size(2), half = pairs[3];
  const Tensor c = reshape(slice(cos_, 0, 0, t), {t, half, 1}), s = reshape(slice(sin_, 0, 0, t), {t, half, 1});
  return reshape(concat({c * first - s * second, s * first + c * second}, -1), x.shape());
}
Tensor DocumentLm::weighted_values(const Tensor& q, const Tensor& k, const Tensor& v) const {
  const int64_t t = q.size(2), hs = q.size(3);
  Tensor mask;  // (T, T), true = masked
  if (scores_ == Scores::matrix) {
    const NameScope here("causal mask construction");
    const Tensor at = arange(0, double(t), 1, DType::i64, q.device());
    mask = lt(reshape(at, {t, 1}), reshape(at, {1, t}));
  }
  const NameScope here("scaled_dot_product_attention"), annotated("annotated_scaled_dot_product_attention");
  if (scores_ == Scores::blocks) return tg::attention(q, k, v, {.causal = true});
  Tensor scores;  // (B, NH, T, T)
  {
    const NameScope inside("computing attention scores");
    scores = masked_fill(matmul(q, k, {.trans_b = true}) / std::sqrt(double(hs)), mask,
                         -std::numeric_limits<double>::infinity());
  }
  {
    const NameScope inside("computing softmax");
    const Tensor e = exp(scores - max(scores, {-1}, {.keepdim = true}).detach());
    scores = e / row_sum(e);
  }
  const NameScope inside("final matmul");
  return matmul(scores, v);
}
Tensor DocumentLm::attention(const Block& w, const Tensor& x) const {
  const int64_t b = x.size(0), t = x.size(1), width = x.size(2), hs = width / config_.heads;
  const auto heads = [&](const Tensor& y) { return transpose(reshape(y, {b, t, config_.heads, hs}), 1, 2); };
  Tensor q, k, v;  // (B, NH, T, HS)
  {
    const NameScope here("attention projections");
    q = heads(linear(x, w.q)), k = heads(linear(x, w.k)), v = heads(linear(x, w.v));
  }
  {
    const NameScope here("rope encoding");
    q = rotated(q), k = rotated(k);
  }
  const Tensor y = weighted_values(q, k, v);
  const NameScope here("output projection");
  return linear(reshape(transpose(y, 1, 2), {b, t, width}), w.proj);
}
Tensor DocumentLm::forward(const Tensor& tokens) const {
  Tensor x;  // (B, T, C)
  {
    const NameScope here("token_embeddings");
    x = embedding(tokens, wte_);
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& w = blocks_[i];
    const NameScope layer(fmt::format("layer_{}", i));
    {
      const NameScope here("attention_sublayer");
      x = x + attention(w, norm(x, w.ln_1));
    }
    const NameScope here("ffn_sublayer");
    const Tensor h = norm(x, w.ln_2);
    x = x + linear(silu(linear(h, w.gate)) * linear(h, w.up), w.down);
  }
  {
    const NameScope here("final_norm");
    x = norm(x, ln_f_);
  }
  const NameScope here("lm_head");
  return linear(x, head_);  // (B, T, V)
}

}  // namespace tg::bench
