/// @file
/// Scaled dot-product attention in blocks: softmax(scale q k^T) v without a matrix of scores (Dao et al.,
/// FlashAttention, 2022), with grouped heads (Ainslie et al., GQA, 2023), a causal mask and lengths of padded
/// sequences; no other mask, no dropout.
#pragma once
#include <tapegrad/core/op.h>

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
};
namespace op {

/// Attributes of the attention ops.
struct AttentionForm {
  bool causal;
  double scale;
  bool kv_lengths, query_starts;                                              ///< true: last inputs, in this order
  size_t extra() const { return size_t(kv_lengths) + size_t(query_starts); }  ///< number of these inputs
  void key(StructuralHash& k) const { k.add(causal), k.add(scale), k.add(kv_lengths), k.add(query_starts); }
};
/// (q, k, v, lengths?, starts?) -> (y, lse). lse (B, NH, Tq): log-sum-exp per row of scores, f64 for f64 inputs, else
/// f32.
struct Attention : OpOf<Attention> {
  static constexpr auto kName = "attention";
  AttentionForm o;
  explicit Attention(AttentionForm form) : o(form) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(3 + o.extra()) - 1; }
  Mask saves_out(Mask) const override { return mask_of(0, 1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { o.key(k); }
  OpWork work(Bufs in, Bufs out) const override;  ///< counts all keys with lengths or starts
};
/// (q, k, v, y, lse, dy, lengths?, starts?) -> (dq, dk, dv).
struct AttentionGrad : OpOf<AttentionGrad> {
  static constexpr auto kName = "attention_grad";
  AttentionForm o;
  explicit AttentionGrad(AttentionForm form) : o(form) {}
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override { o.key(k); }
  OpWork work(Bufs in, Bufs out) const override;
};
/// (x, lengths?, starts?) -> (y, lse). x (B, T, H, HS): heads of queries, keys, values. y (B, T, NH, HS), lse (B, NH,
/// T).
struct SelfAttention : OpOf<SelfAttention> {
  static constexpr auto kName = "self_attention";
  AttentionForm o;
  int64_t kv_heads;
  SelfAttention(AttentionForm form, int64_t n) : o(form), kv_heads(n) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(1 + o.extra()) - 1; }
  Mask saves_out(Mask) const override { return mask_of(0, 1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { o.key(k), k.add(kv_heads); }
  OpWork work(Bufs in, Bufs out) const override;
};
/// (x, y, lse, dy, lengths?, starts?) -> dx.
struct SelfAttentionGrad : OpOf<SelfAttentionGrad> {
  static constexpr auto kName = "self_attention_grad";
  AttentionForm o;
  int64_t kv_heads;
  SelfAttentionGrad(AttentionForm form, int64_t n) : o(form), kv_heads(n) {}
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override { o.key(k), k.add(kv_heads); }
  OpWork work(Bufs in, Bufs out) const override;
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

namespace kernel {
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
