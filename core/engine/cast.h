/// @file
/// Conversions of dtype, device and strides. Users call the members of Tensor (to, contiguous, to_vector, item); only
/// they emit these ops.
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
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0], to)}; }
  Tensors vjp(const Vjp& v) const override { return {v.grad()}; }  // backward() converts if needed
  void key(StructuralHash& k) const override { k.add(uint64_t(to)); }
};
}  // namespace op

/// x in the dtype of computation: bf16 becomes f32, so that gradients have no intermediate rounded to 8 bits.
inline Tensor widened(const Tensor& x) { return x.dtype() == DType::bf16 ? x.to(DType::f32) : x; }
namespace detail {
/// f64 for f64, else f32: losses and statistics.
inline DType dtype_of_sums(const Tensor& x) { return x.dtype() == DType::f64 ? DType::f64 : DType::f32; }
}  // namespace detail

}  // namespace tg
