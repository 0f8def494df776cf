/// @file
/// The int8 feed-forward part of a transformer block. GELU and the quantization of its result are one pass; backward
/// recomputes the result.
#pragma once
#include <tapegrad/ops/quantized/quantize.h>
#include <tapegrad/ops/quantized/switchback.h>

namespace tg {
namespace op {

/// (h (..., K)) -> (`codes` i8 (..., K), absmax f32 (...)) of GELU(h).
struct GeluQuantize : OpOf<GeluQuantize> {
  static constexpr auto kName = "gelu_quantize_rowwise";
  bool by_tanh;
  explicit GeluQuantize(bool tanh) : by_tanh(tanh) {}
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(by_tanh); }
};
/// (x (..., in), fc weight (ff, in), proj weight (out, ff)[, fc bias (ff), proj bias (out)]) -> (y (..., out), h (...,
/// ff)); h is the input of GELU.
struct SwitchBackMlp : OpOf<SwitchBackMlp> {
  static constexpr auto kName = "switchback_mlp";
  SwitchBackMode mode;
  bool by_tanh;
  SwitchBackMlp(SwitchBackMode m, bool tanh) : mode(m), by_tanh(tanh) {}
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(0, 1, 2); }
  Mask saves_out(Mask) const override { return mask_of(1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(int(mode)), k.add(by_tanh); }
};
}  // namespace op

/// quantize_rowwise(gelu(h)), or of gelu_tanh(h) if by_tanh, in one pass over h (..., K), f32 or bf16. GELU is first
/// rounded to h's dtype. No gradient. Errors: see quantize_rowwise().
Quantized gelu_quantize_rowwise(const Tensor& h, bool by_tanh = true);

/// Layers of switchback_mlp().
struct SwitchBackMlpLayers {
  Tensor fc_weight = {};                         ///< (ff, in)
  Tensor fc_bias = {};                           ///< (ff), or empty
  Tensor proj_weight = {};                       ///< (out, ff)
  Tensor proj_bias = {};                         ///< (out), or empty; both biases or none
  SwitchBackMode mode = SwitchBackMode::global;  ///< global or vector_wise
  bool by_tanh = true;                           ///< gelu_tanh(), or gelu()
};
/// switchback_linear(gelu(switchback_linear(x, fc)), proj): x (..., in) -> (..., out), in f32 or bf16, x's dtype. Keeps
/// x, the weights and the first layer's result alone. Gradients are those of the layers.
Tensor switchback_mlp(const Tensor& x, const SwitchBackMlpLayers&);

}  // namespace tg
