/// @file
/// SwitchBack: a linear layer with 8-bit GEMM for the result and the gradient of x. The weight's gradient, a sum over a
/// batch, has full precision (Wortsman et al., 2023, see quantize.h).
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
struct Quantized;

/// Quantization of weights, and what backward keeps. Rows of x and of the gradient have separate scales.
enum class SwitchBackMode : uint8_t {
  global,  ///< one absmax of the weight; keeps x and weight
  /// Absmax per row of the weight, and per column for the gradient of x; keeps x and weight.
  vector_wise,
  /// Like global, but keeps x and weight quantized, and dequantizes x for the gradient of the weight.
  memory_efficient,
  /// Like vector_wise, in fp8: e4m3, and e5m2 for the gradient (fp8.h).
  fp8,
  fp8_e4m3,  ///< fp8 with e4m3 for the gradient too
};
namespace op {

/// (x (..., in), weight (out, in)[, bias (out)]) -> (y (..., out)); memory_efficient adds `codes` and absmax of x and
/// of the weight.
struct SwitchBack : OpOf<SwitchBack> {
  static constexpr auto kName = "switchback_linear";
  SwitchBackMode mode;
  bool of_gradient;  ///< x is a gradient: e5m2 in mode fp8
  explicit SwitchBack(SwitchBackMode m, bool gradient = false) : mode(m), of_gradient(gradient) {}
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  Mask saves_in(Mask tracked) const override {
    return mode == SwitchBackMode::memory_efficient ? 0 : (tracked & 1) << 1 | (tracked & 2) >> 1;
  }
  Mask saves_out(Mask tracked) const override {
    if (mode != SwitchBackMode::memory_efficient) return 0;
    return (tracked & 1 ? mask_of(3, 4) : 0) | (tracked & 2 ? mask_of(1, 2) : 0);
  }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(int(mode)), k.add(of_gradient); }
};
}  // namespace op

/// x (..., in) times weight (out, in) transposed, plus bias (out): (..., out), of x's dtype, by 8-bit GEMM (quantize.h,
/// fp8.h). x, weight and bias are f32, bf16 or f16, and may differ. Gradients, each in its tensor's dtype: of x by
/// 8-bit GEMM; of the weight by GEMM in x's dtype (f16 in f32); of the bias a sum. Except in memory_efficient mode, the
/// gradient can be differentiated again, with quantization as the identity. A value Error names the first element of x,
/// weight or gradient that is NaN or infinite; `in` and `out` are at most 131071.
Tensor switchback_linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                         SwitchBackMode = SwitchBackMode::global);
namespace detail {
/// Quantizes a weight to int8 in a mode other than fp8.
Quantized quantize_weight(const Tensor& weight, SwitchBackMode);
}  // namespace detail

}  // namespace tg
