/// @file
/// SwitchBack: a linear layer whose result and whose gradient of x are products of 8-bit integers, while the gradient
/// of the weight, a sum over all rows of a batch, is a product in full precision (Wortsman et al., Stable and
/// low-precision training for large-scale vision-language models, 2023, arXiv:2304.13013). Layers use it.
#pragma once
#include <tapegrad/core/op.h>

#include <string_view>

namespace tg {

/// How SwitchBack quantises weights, and what it keeps for backward. Rows of x and of the gradient are always quantised
/// by themselves.
enum class SwitchBackMode : uint8_t {
  global,            ///< the weight by its largest magnitude; keeps x and weight
  vector_wise,       ///< each row of the weight by itself, and each column for the gradient of x; keeps x and weight
  memory_efficient,  ///< as global; keeps the codes of x and weight, and multiplies by what those of x stand for
  fp8,               ///< as vector_wise, by 8-bit floats: e4m3, and e5m2 for the gradient (fp8.h)
  fp8_e4m3,          ///< the same with e4m3 for the gradient too
};
namespace op {

/// (x (..., in), weight (out, in)[, bias (out)]) -> (y (..., out)); memory_efficient adds codes and absmax of x and of
/// the weight.
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

/// x (..., in) times weight (out, in) transposed, plus bias (out): (..., out), of x's dtype, by codes of 8 bits (see
/// quantize.h and fp8.h). x is f32, bf16 or f16, the others too, and may differ. Gradients: of x by 8-bit codes of the
/// gradient and the weight; of the weight a plain product in x's dtype (f16 in f32), of the bias a sum; each in the
/// dtype of its tensor. The gradient can be differentiated again, as if quantising changed no value; not so in
/// memory_efficient mode. A value Error names the first element of x, weight or gradient that is NaN or infinite; `in`
/// and `out` are at most 131071.
Tensor switchback_linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                         SwitchBackMode = SwitchBackMode::global);

}  // namespace tg
