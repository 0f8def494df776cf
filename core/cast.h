/// @file
/// Conversions: another dtype, another device, contiguous strides. Users call the members of Tensor (to, contiguous,
/// to_vector, item); only they emit these ops.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// Converts elements to another dtype. Floating values become integers by rounding towards 0, with saturation; NaN
/// becomes 0.
struct Cast : OpOf<Cast> {
  static constexpr auto kName = "cast";
  DType to;
  explicit Cast(DType t) : to(t) {}
  Traits traits() const override { return {.cheap_to_recompute = true}; }
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(to)); }
};
}  // namespace op

/// x in the dtype that kernels compute in: bf16 becomes f32, all others stay. Gradients that are made of several ops
/// use it, so that no intermediate is rounded to 8 bits.
inline Tensor widened(const Tensor& x) { return x.dtype() == DType::bf16 ? x.to(DType::f32) : x; }

}  // namespace tg
