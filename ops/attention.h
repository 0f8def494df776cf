/// @file
/// Scaled dot-product attention in blocks: softmax(scale q k^T) v without a matrix of scores (Dao et al.,
/// FlashAttention, 2022). It has grouped heads (Ainslie et al., GQA, 2023) and a causal mask; it has no other mask and
/// no dropout. Attention layers use it.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

/// Options of attention().
struct AttentionOptions {
  bool causal = true;  ///< query i sees the keys j <= i + Tk - Tq: the last query sees all
  double scale = 0;    ///< factor of the scores; 0 means 1 / sqrt(HS)
};
namespace op {

/// (q, k, v) -> (y, lse). lse (B, NH, Tq) is the logarithm of the sum of exponentials of each row of scores; its dtype
/// is f64 for f64 inputs, else f32.
struct Attention : OpOf<Attention> {
  static constexpr auto kName = "attention";
  AttentionOptions o;
  explicit Attention(AttentionOptions opt) : o(opt) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return bits(0, 1, 2); }
  Mask saves_out(Mask) const override { return bits(0, 1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(o.causal), k.add(o.scale); }
};
/// (q, k, v, y, lse, dy) -> (dq, dk, dv).
struct AttentionGrad : OpOf<AttentionGrad> {
  static constexpr auto kName = "attention_grad";
  AttentionOptions o;
  explicit AttentionGrad(AttentionOptions opt) : o(opt) {}
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;  ///< computes the matrices of scores
  void key(StructuralHash& k) const override { k.add(o.causal), k.add(o.scale); }
};
}  // namespace op

/// Attention of q (B, NH, Tq, HS) to k and v (B, NHkv, Tk, HS): softmax(scale q k^T) v, (B, NH, Tq, HS). f64, f32, or
/// bf16 (computed in f32, rounded once). Query head h reads key head h / (NH / NHkv). The result is stored in the order
/// (B, Tq, NH, HS), so transpose(y, 1, 2) is contiguous; gradients are stored likewise. An Error if Tk is 0, or if the
/// mask is causal and Tq > Tk.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions = {});

}  // namespace tg
