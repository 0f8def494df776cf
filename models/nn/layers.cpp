#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/nn/fragmented.h>
#include <tapegrad/models/nn/kv_cache.h>
#include <tapegrad/models/nn/lora.h>
#include <tapegrad/ops/attention.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/quantized/fp8.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/switchback_mlp.h>
#include <tapegrad/ops/rope.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/swiglu.h>
#include <tapegrad/ops/training/dropout.h>

#include <cmath>

namespace tg {

void from_name(std::string_view name, LinearKind& to) {
  const auto says = [name](std::string_view word) { return name.find(word) != name.npos; };
  TG_CHECK(!says("vector-wise") || !says("memory-efficient"), value,
           "[linear] '{}' asks for two modes that exclude each other: a weight quantized by rows cannot be read as one "
           "quantized by columns, so vector-wise must keep the weight. Choose one of {}.",
           name, detail::listed(kEnumNames<LinearKind>.names));
  from_name<LinearKind>(name, to);
}
SwitchBackMode detail::mode_of(LinearKind k) {
  TG_CHECK(k != LinearKind::plain, value, "[linear] a plain layer has no SwitchBack mode. Use another kind.");
  return SwitchBackMode(int(k) - 1);
}
static_assert(int(LinearKind::switchback) - 1 == int(SwitchBackMode::global) &&
              int(LinearKind::switchback_vector_wise) - 1 == int(SwitchBackMode::vector_wise) &&
              int(LinearKind::switchback_memory_efficient) - 1 == int(SwitchBackMode::memory_efficient) &&
              int(LinearKind::fp8) - 1 == int(SwitchBackMode::fp8) &&
              int(LinearKind::fp8_e4m3) - 1 == int(SwitchBackMode::fp8_e4m3));

namespace nn {
namespace {
Tensor activate(Activation a, const Tensor& x) {
  switch (a) {
    case Activation::gelu: return gelu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::silu: return silu(x);
    case Activation::relu: return relu(x);
    case Activation::relu2: return op::unary<op::ReluSquared>(x);
    case Activation::swiglu: break;
  }
  return swiglu(x);
}
// Refuses gradients: the weight is gone.
const Tensor& untracked(const Tensor& x, const Tensor& bias) {
  TG_CHECK(!grad_enabled() || (!x.requires_grad() && !(bias && bias.requires_grad())), state,
           "[linear] gradients are requested through a layer that was prepared for evaluation: {}. Its weight is gone. "
           "Call it under a NoGradScope, or load the model again to train it.",
           detail::describe(x));
  return x;
}
bool is_fp8(LinearKind k) { return k == LinearKind::fp8 || k == LinearKind::fp8_e4m3; }
Quantized codes_of(const Tensor& weight, LinearKind k) {
  if (is_fp8(k)) {
    const QuantizedFp8 q = quantize_fp8(weight);
    return {q.values, q.absmax};
  }
  return detail::quantize_weight(weight, detail::mode_of(k));
}
Tensor by_codes(const Tensor& x, const Quantized& weight, const Tensor& bias) {
  if (weight.values.dtype() == DType::u8)
    return fp8_linear(quantize_fp8(x), {weight.values, weight.absmax}, bias, x.dtype());
  return int8_linear(quantize_rowwise(x), weight, bias, x.dtype());
}
Linear linear_of(const Params& p, int64_t in, int64_t out, const Init& init, bool bias, const BlockOptions& o) {
  return Linear(p, in, out, {.bias = bias, .init = init, .fragments = o.fragments ? o.fragments(p) : 0});
}
// A norm of the f32 stream x with a bf16 branch in one op.
bool is_mixed(const Tensor& x, std::optional<DType> branch) { return x.dtype() == DType::f32 && branch == DType::bf16; }
Init of_parts(Init init, const Dims& parts) {
  init.row_splits = parts;
  return init;
}
}  // namespace

Tensor dropout_if(const Tensor& x, double p, Rng* rng) { return rng && p > 0 ? dropout(x, p, *rng) : x; }

Linear::Linear(const Params& p, int64_t in, int64_t out, LinearOptions o) : Layer{p.scope()}, kind(o.kind) {
  if (o.fragments != 0) {
    TG_CHECK(kind == LinearKind::plain, value,
             "[linear] {} fragments in a layer of kind {}. Only plain ones have them.", o.fragments, name_of(kind));
    fragmented =
        std::make_shared<FragmentedLinear>(p, in, out, FragmentedOptions{.fragments = o.fragments, .bias = o.bias});
    return;
  }
  const Init by_fan_in = Init::uniform(in > 0 ? 1 / std::sqrt(double(in)) : 0);
  if (kind == LinearKind::plain) blocks = p.blocks("weight", {out, in});
  if (!blocks) weight = p.get("weight", {out, in}, o.init.value_or(by_fan_in));
  if (o.bias) bias = p.get("bias", {out}, o.init ? Init::constant(0) : by_fan_in);
}
Tensor Linear::forward(const Tensor& x, std::optional<DType> compute, Rng* rng, bool adapters, bool unrounded) const {
  if (fragmented) return fragmented->forward(x, rng ? Selection::soft : Selection::hard, compute);
  NameScope here = enter();
  const Tensor in = compute ? x.to(*compute) : x;
  const auto like_x = [&](const Tensor& t) { return compute ? detail::cast_parameter(t, *compute) : t; };
  Tensor y;
  if (unrounded && kind == LinearKind::plain && in.dtype() == DType::bf16 && in.device() == Device::cpu()) {
    y = blocks ? detail::unrounded_block_linear(in, *blocks) : detail::unrounded_linear(in, like_x(weight));
    if (bias) y = y + bias.to(y.dtype());
  } else if (blocks)
    y = block_linear(in, *blocks, bias ? like_x(bias) : bias);
  else if (kind == LinearKind::plain)
    y = bias ? linear(in, like_x(weight), like_x(bias)) : linear(in, like_x(weight));
  else if (quantized)
    y = by_codes(untracked(in, bias), *quantized, bias);
  else
    y = switchback_linear(in, weight, bias, detail::mode_of(kind));
  if (!adapter) return y;
  const bool trains = adapters && rng && grad_enabled();
  TG_CHECK(!adapter->unmerged || (adapters && !trains), state,
           "[lora] '{}' is to {} its adapter, which is merged into the weight. Call unmerge() first.", name(),
           trains ? "train" : "run without");
  if (adapters) return adapter->unmerged ? y : adapter->forward(in, rng, y);
  return adapter->reference ? adapter->reference->forward(in, nullptr, y) : y;
}

void Linear::prepare_for_eval() {
  NameScope here = enter();
  TG_CHECK(kind != LinearKind::plain, state,
           "[linear] '{}' is plain: it has nothing to quantize. Make it a SwitchBack layer first: replace_linears().",
           name());
  TG_CHECK(!quantized, state, "[linear] the layer is prepared for evaluation already. Prepare it once.");
  NoGradScope off;
  Quantized q = codes_of(weight, kind);
  eval({q.values, q.absmax});
  quantized = std::move(q);
  weight = {};
  tg::structure_changed();
}

Embedding::Embedding(const Params& p, int64_t entries, int64_t width, Init init)
    : Layer{p.scope()}, blocks(p.blocks("weight", {entries, width})), dtype(p.dtype()) {
  if (!blocks) table = p.get("weight", {entries, width}, init);
}
Tensor Embedding::forward(const Tensor& ids) const {
  NameScope here = enter();
  return blocks ? block_rows(*blocks, ids, dtype) : embedding(ids, table);
}

Norm::Norm(const Params& p, int64_t width, NormOptions o) : Layer{p.scope()}, kind(o.kind), eps(o.eps) {
  if (!o.affine) return;
  weight = p.get("weight", {width}, Init::constant(1));
  if (o.bias && kind == NormKind::layer_norm) bias = p.get("bias", {width}, Init::constant(0));
}
Tensor Norm::forward(const Tensor& x, std::optional<DType> compute) const {
  NameScope here = enter();
  const DType to = is_mixed(x, compute) ? DType::bf16 : x.dtype();
  return kind == NormKind::layer_norm ? layer_norm(x, weight, bias, eps, to) : rms_norm(x, weight, eps, to);
}
AddedNorm Norm::add(const Tensor& x, const Tensor& branch, std::optional<DType> compute) const {
  if (!branch) return {x, forward(x, compute)};
  NameScope here = enter();
  const Tensor r = is_mixed(x, branch.dtype()) ? branch : branch.to(x.dtype());
  return kind == NormKind::layer_norm ? add_layer_norm(x, r, weight, bias, eps) : add_rms_norm(x, r, weight, eps);
}

SelfAttention::SelfAttention(const Params& p, int64_t width, const BlockOptions& given)
    : Layer{p.scope()}, options(given) {
  BlockOptions& o = options;
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  TG_CHECK(o.heads >= 1 && o.head_dim >= 0 && (o.head_dim > 0 || width % o.heads == 0), value,
           "[attention] a width of {} cannot be split among {} heads. The width must be a multiple of the heads, "
           "unless head_dim is 1 or more.",
           width, o.heads);
  TG_CHECK(o.kv_heads >= 1 && o.heads % o.kv_heads == 0, value,
           "[attention] {} heads cannot share {} kv_heads evenly. kv_heads must divide heads.", o.heads, o.kv_heads);
  if (o.head_dim == 0) o.head_dim = width / o.heads;
  const int64_t hs = o.head_dim, q = o.heads * hs, kv = o.kv_heads * hs;
  TG_CHECK(o.positions != Positions::rope || hs % 2 == 0, value,
           "[attention] a width of {} over {} heads makes heads of size {}, which rope cannot rotate in pairs. The "
           "size must be even.",
           width, o.heads, hs);
  qkv = linear_of(p.at("qkv"), width, q + 2 * kv, of_parts(o.init, {q, kv, kv}), o.bias || o.qkv_bias, o);
  if (o.qk_norm) {
    const NormOptions each_head{.kind = NormKind::rms_norm, .affine = o.qk_norm_affine, .eps = o.norm_eps};
    q_norm = Norm(p.at("q_norm"), hs, each_head), k_norm = Norm(p.at("k_norm"), hs, each_head);
  }
  proj = linear_of(p.at("proj"), q, width, o.init_proj, o.bias, o);
  o.fragments = {};  // the function may refer to destroyed objects
}
Tensor SelfAttention::run(const Tensor& x, const LayerContext& c, bool weights) const {
  NameScope here = enter();
  const BlockOptions& o = options;
  TG_CHECK(x.ndim() == 3, shape, "[attention] the input must be (B, T, C), got {}. Add sizes of 1 with reshape().", x);
  TG_CHECK(!c.cache || (o.causal && !c.lengths), value,
           "[attention] a cache with {}. Cached rows cannot attend to later ones: use it with causal "
           "attention, and without lengths.",
           o.causal ? "lengths of padded sequences" : "attention that is not causal");
  const int64_t b = x.size(0), t = x.size(1), hs = o.head_dim;
  AttentionOptions how{.causal = o.causal, .scale = o.attn_scale, .kv_lengths = c.lengths};
  if (c.cache && c.cache->has_capacity()) how.query_starts = c.cache->lengths();
  if (c.rng && !weights) how.dropout = o.attn_dropout, how.rng = c.rng;
  const auto transposed = [&](const Tensor& y, int64_t n) {  // the first n heads
    if (o.positions != Positions::rope) return y;
    return rope(y, {.theta = o.rope_theta,
                    .start = how.query_starts ? 0 : c.position,
                    .starts = how.query_starts,
                    .scaling = o.rope_scaling,
                    .heads = n});
  };
  Tensor all = reshape(qkv.forward(x, c.compute, c.rng, c.adapters), {b, t, o.heads + 2 * o.kv_heads, hs});
  Tensor y;
  if (!c.cache && !o.qk_norm && !weights) {
    all = transposed(all, o.heads + o.kv_heads);  // frees the unrotated copy
    y = self_attention(all, o.kv_heads, how);     // (B, T, NH, HS)
  } else {
    const auto in_heads = [&](const Tensor& part) { return transpose(part, 1, 2); };
    Tensors parts = split(all, {o.heads + o.kv_heads, o.kv_heads}, 2);  // queries and keys; values
    all = {};
    const DType compute = parts[0].dtype(), inside = q_norm.weight ? q_norm.weight.dtype() : compute;
    Tensors qk = split(parts[0].to(inside), {o.heads, o.kv_heads}, 2);  // (B, T, NH or NHkv, HS) x 2
    for (size_t i = 0; i < 2; ++i) {
      if (o.qk_norm) qk[i] = (i == 0 ? q_norm : k_norm).forward(qk[i], compute).to(compute);
      qk[i] = transposed(qk[i], qk[i].size(2));
    }
    // On the tape, a view would keep queries and keys alive, which norms keep anyway unless they are converted.
    const bool keeps_qk = o.qk_norm && inside == compute;
    const Tensor v = parts[1].requires_grad() && !keeps_qk ? parts[1].contiguous() : parts[1];
    const Tensor q = in_heads(qk[0]);                // (B, NH, T, HS)
    KvCache::Pair kv{in_heads(qk[1]), in_heads(v)};  // (B, NHkv, T, HS) x 2
    if (c.cache) kv = c.cache->append(c.layer, kv);  // (B, NHkv, past + T or capacity, HS) x 2
    if (weights) return detail::attention_weights(q, kv.k, how);
    y = transpose(attention(q, kv.k, kv.v, how), 1, 2);  // (B, T, NH, HS)
  }
  return dropout_if(proj.forward(reshape(y, {b, t, o.heads * hs}), c.compute, c.rng, c.adapters), o.dropout, c.rng);
}

Mlp::Mlp(const Params& p, int64_t width, const BlockOptions& o)
    : Layer{p.scope()}, activation(o.activation), dropout(o.dropout), place(o.ff_dropout) {
  const int64_t ff = o.ff_width ? o.ff_width : 4 * width;
  const bool gated = activation == Activation::swiglu;
  const Init init = gated ? of_parts(o.init, {ff, ff}) : o.init;
  fc = linear_of(p.at("fc"), width, gated ? 2 * ff : ff, init, o.bias, o);
  proj = linear_of(p.at("proj"), ff, width, o.init_proj, o.bias, o);
}
Tensor Mlp::forward(const Tensor& x, const LayerContext& c) const {
  NameScope here = enter();
  // One pass computes and quantizes GELU without storing it; results equal those of separate layers.
  const auto is_simple = [&](const Linear& l) { return !l.adapter && !l.prepared() && l.kind == fc.kind; };
  const bool has_fused = fc.kind == LinearKind::switchback || fc.kind == LinearKind::switchback_vector_wise;
  const bool is_gelu = activation == Activation::gelu || activation == Activation::gelu_tanh;
  const bool inside = place == FfDropout::activation;
  if (has_fused && is_gelu && !(inside && c.rng && dropout > 0) && is_simple(fc) && is_simple(proj) &&
      bool(fc.bias) == bool(proj.bias)) {
    const Tensor y = switchback_mlp(c.compute ? x.to(*c.compute) : x, {.fc_weight = fc.weight,
                                                                       .fc_bias = fc.bias,
                                                                       .proj_weight = proj.weight,
                                                                       .proj_bias = proj.bias,
                                                                       .mode = detail::mode_of(fc.kind),
                                                                       .by_tanh = activation == Activation::gelu_tanh});
    return inside ? y : dropout_if(y, dropout, c.rng);
  }
  Tensor h = fc.forward(x, c.compute, c.rng, c.adapters);  // (..., F or 2F)
  h = activate(activation, h);                             // (..., F)
  if (inside) h = dropout_if(h, dropout, c.rng);
  h = proj.forward(h, c.compute, c.rng, c.adapters);
  return inside ? h : dropout_if(h, dropout, c.rng);
}

}  // namespace nn
}  // namespace tg
