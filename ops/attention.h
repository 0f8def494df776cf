/// @file
/// Scaled dot-product attention in blocks: softmax(scale q k^T) v without a matrix of scores (Dao et al.,
/// FlashAttention, 2022). Grouped heads (Ainslie et al., GQA, 2023) and a causal mask; no other mask and no dropout.
/// Users: attention layers.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

struct AttentionOptions {
  bool causal = true;  ///< query i sees the keys j <= i + Tk - Tq: the last query sees all
  double scale = 0;    ///< of the scores; 0: 1 / sqrt(HS)
};
namespace op {

/// (q, k, v) -> (y, lse); lse (B, NH, Tq) is the logarithm of the sum of exponentials of a row, in f32, of f64 input
/// f64.
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
/// (q, k, v, y, lse, dy) -> (dq, dk, dv)
struct AttentionGrad : OpOf<AttentionGrad> {
  static constexpr auto kName = "attention_grad";
  AttentionOptions o;
  explicit AttentionGrad(AttentionOptions opt) : o(opt) {}
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;  ///< with the matrices of scores
  void key(StructuralHash& k) const override { k.add(o.causal), k.add(o.scale); }
};
}  // namespace op

/// q (B, NH, Tq, HS), k and v (B, NHkv, Tk, HS) -> (B, NH, Tq, HS), stored in the order (B, Tq, NH, HS) so that
/// transpose(y, 1, 2) is contiguous; gradients are stored likewise. Query head h reads key head h / (NH / NHkv). f64,
/// f32, bf16 (computed in f32, rounded once). An Error when Tk is 0, or Tq > Tk with the causal mask.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions = {});

}  // namespace tg
