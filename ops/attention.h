/// @file
/// Scaled dot-product attention in blocks: softmax(scale q k^T) v without a matrix of scores (Dao et al.,
/// FlashAttention, 2022), with grouped heads (Ainslie et al., GQA, 2023), a causal mask, lengths of padded sequences
/// and dropout of weights; no other mask.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/rng.h>

#include <cmath>

namespace tg {

/// Options of attention(). Query i of sequence b sees keys j < lengths[b] and, if causal, j <= starts[b] + i.
struct AttentionOptions {
  bool causal = false;  ///< no query_starts: query i sees j <= i + Tk - Tq
  double scale = 0;     ///< factor of the scores; 0 means 1 / sqrt(HS)
  /// (B) i32 or i64: the number of keys per sequence, 0 to Tk; the rest is padding, not read. Empty: Tk.
  Tensor kv_lengths = {};
  /// (B) i32 or i64: position of the first query among the keys, 0 to Tk; needs causal. For caches longer than the
  /// text. Empty: Tk - Tq.
  Tensor query_starts = {};
  /// Sets each weight of the softmax to 0 with this probability, and divides the others by 1 - dropout. In [0, 1). The
  /// mask of a weight depends on the generator's state, its sequence, head, and positions of query and key, so a cache
  /// and a longer text have the same.
  double dropout = 0;
  Rng* rng = nullptr;  ///< needed for dropout, which takes 4 B NH words
};
namespace op {

/// Attributes of the attention ops.
struct AttentionForm {
  bool causal;
  double scale;
  bool kv_lengths, query_starts;  ///< true: last inputs, in this order
  double dropout = 0;
  Rng rng = {};                                                               ///< not in key()
  size_t extra() const { return size_t(kv_lengths) + size_t(query_starts); }  ///< number of these inputs
  void key(StructuralHash& k) const {
    k.add(causal), k.add(scale), k.add(kv_lengths), k.add(query_starts), k.add(dropout);
  }
  /// `products` dot products per visible pair.
  double multiply_adds(Bufs in, int64_t kv_heads, double products) const;
};
/// A base of the attention ops. With dropout they are random ops.
template <class Self> struct AttentionOp : OpOf<Self> {
  AttentionForm o;
  int64_t kv_heads;  ///< self_attention()'s, else 0
  explicit AttentionOp(AttentionForm form, int64_t n = 0) : o(form), kv_heads(n) {}
  Traits traits() const override { return {.dynamic_attributes = o.dropout > 0}; }
  void key(StructuralHash& k) const override { o.key(k), k.add(kv_heads); }
  const Rng* rng_state() const override { return o.dropout > 0 ? &o.rng : nullptr; }
  OpPtr for_next_step(const Rng& r) const override {
    if (o.dropout == 0) return nullptr;
    const Ref<Self> next = make_ref<Self>(static_cast<const Self&>(*this));
    next->o.rng = r;
    return next;
  }
  /// Counts all keys with lengths or starts.
  double multiply_adds(Bufs in, Bufs) const override { return o.multiply_adds(in, kv_heads, Self::kProducts); }
};
/// (q, k, v, lengths?, starts?) -> (y, lse). lse (B, NH, Tq): log-sum-exp per row of scores, f64 for f64 inputs, else
/// f32.
struct Attention : AttentionOp<Attention> {
  static constexpr auto kName = "attention";
  static constexpr double kProducts = 2;  ///< scores, y
  using AttentionOp::AttentionOp;
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(3 + o.extra()) - 1; }
  Mask saves_out(Mask) const override { return mask_of(0, 1); }
  Tensors vjp(const Vjp&) const override;
};
/// (q, k, v, y, lse, dy, lengths?, starts?) -> (dq, dk, dv).
struct AttentionGrad : AttentionOp<AttentionGrad> {
  static constexpr auto kName = "attention_grad";
  static constexpr double kProducts = 5;  ///< scores, dp, dq, dk, dv
  using AttentionOp::AttentionOp;
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
};
/// (x, lengths?, starts?) -> (y, lse). x (B, T, H, HS): heads of queries, keys, values. y (B, T, NH, HS), lse (B, NH,
/// T).
struct SelfAttention : AttentionOp<SelfAttention> {
  static constexpr auto kName = "self_attention";
  static constexpr double kProducts = Attention::kProducts;
  using AttentionOp::AttentionOp;
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(1 + o.extra()) - 1; }
  Mask saves_out(Mask) const override { return mask_of(0, 1); }
  Tensors vjp(const Vjp&) const override;
};
/// (x, y, lse, dy, lengths?, starts?) -> dx.
struct SelfAttentionGrad : AttentionOp<SelfAttentionGrad> {
  static constexpr auto kName = "self_attention_grad";
  static constexpr double kProducts = AttentionGrad::kProducts;
  using AttentionOp::AttentionOp;
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Tensors compose(Inputs) const override;
};
}  // namespace op

/// softmax(scale q k^T) v, (B, NH, Tq, HS), of q (B, NH, Tq, HS), k and v (B, NHkv, Tk, HS). f64, f32, or bf16
/// (computed in f32, rounded once). Query head h reads key head h / (NH / NHkv). Result and gradients are stored as (B,
/// Tq, NH, HS), so transpose(y, 1, 2) is contiguous. An Error if Tk is 0, or if causal, Tq > Tk, without starts.
///
/// A sequence of length 0 has result and gradients 0. Queries in padding are computed, for the caller to ignore.
/// Lengths and starts have no gradient. One outside [0, Tk] is an Error that names it, when the op runs; on a CUDA
/// device see indexing.h.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& = {});
/// attention() on one projection: x (B, T, NH + 2 kv_heads, HS) has the heads of queries, keys and values. The result
/// is (B, T, NH, HS), with the bits of attention(). Nothing is concatenated. An Error if x has no query head, or as for
/// attention().
Tensor self_attention(const Tensor& x, int64_t kv_heads, const AttentionOptions& = {});

namespace detail {
/// The weights that attention() keeps with these options, whose generator stays: bool, scores' shape (B, NH, Tq, Tk),
/// false where a query does not see the key. For tests and second derivatives: O(B NH Tq Tk^2).
Tensor attention_kept(const Shape& scores, const AttentionOptions&, Device = Device::cpu());
/// The weights of v in attention(), (B, NH, Tq, Tk) of q's dtype, by matmul() and softmax(), so slow, and stored.
/// Errors of attention().
Tensor attention_weights(const Tensor& q, const Tensor& k, const AttentionOptions&);
}  // namespace detail

namespace kernel {
/// The mask of dropout p > 0.
struct AttentionMask {
  Rng rng;
  int32_t limit;  ///< upper 24 bits below it: dropped
  double factor;  ///< 1 / (1 - p)
  AttentionMask(double p, const Rng& at) : rng(at), limit(int32_t(std::ceil(p * 0x1p24))), factor(1 / (1 - p)) {}
};
/// The mask's words of keys 4 quad to 4 quad + 3 and query i: positions, in the counter's upper half. `head`: b NH + h.
TG_HD_INLINE Words attention_words(const Rng& at, int64_t head, int64_t i, int64_t quad) {
  const uint64_t n = at.offset + uint64_t(head);
  return tg::detail::philox4x32({uint32_t(n), uint32_t(n >> 32), uint32_t(i), uint32_t(quad)}, at.seed);
}
/// Runs a kernel of attention() on views of self_attention()'s buffers.
/// @{
void by_parts(const op::SelfAttention&, Bufs in, Bufs out, Context&,
              void (*attention)(const op::Attention&, Bufs in, Bufs out, Context&));
void by_parts(const op::SelfAttentionGrad&, Bufs in, Bufs out, Context&,
              void (*attention)(const op::AttentionGrad&, Bufs in, Bufs out, Context&));
template <class Op, auto attention> void by_parts(const Op& op, Bufs in, Bufs out, Context& c) {
  by_parts(op, in, out, c, attention);
}
/// @}
/// The Error of a length or start outside [0, most]. `position`: its sequence; `what`: "lengths" or
/// "starts".
Error attention_span_outside(std::string_view op, std::string_view what, int64_t value, int64_t position, int64_t most);
}  // namespace kernel

}  // namespace tg
