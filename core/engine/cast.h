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
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(to)); }
};
}  // namespace op

/// x.to(dtype) for model parameters. An f32 leaf that requires a gradient gets one bf16 copy of 2 bytes per element. It
/// is valid while the leaf has this value, and adamw_step() updates it with the leaf. All calls return views of it: do
/// not write to them. to() converts everything else. The gradient of the leaf is bf16, as that of to().
Tensor parameter_as(const Tensor& x, DType);

namespace detail {
// The copy of parameter_as(); null without one, or if the elements were written since.
Ref<Value> bf16_copy(Value&);
Ref<Value> keep_bf16_copy(Value&);  // makes it if missing; at once if v has elements
// An op that overwrites a parameter overwrites its copy too: it takes the copy from the old value, and gives it to the
// new value.
Ref<Value> take_bf16_copy(const Tensor& x);
void give_bf16_copy(Value&, Ref<Value> copy);
}  // namespace detail

/// x in the dtype of computation: bf16 becomes f32. Gradients of several ops use it, so that no intermediate is rounded
/// to 8 bits.
inline Tensor widened(const Tensor& x) { return x.dtype() == DType::bf16 ? x.to(DType::f32) : x; }

}  // namespace tg
