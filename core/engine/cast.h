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

/// x.to(dtype) for the parameters of a model. The bf16 form of an f32 leaf that requires a gradient is made once: it is
/// kept as long as the leaf has this value, takes 2 bytes per element, and adamw_step() writes it along with the leaf.
/// All calls return views of it, so use them for reading alone. Anything else is converted by to(). Differentiable:
/// the gradient of the leaf comes in bf16, as that of to().
Tensor parameter_as(const Tensor& x, DType);

namespace detail {
// What parameter_as() keeps of a value: null if there is none, or if the elements have been written to since.
Ref<Value> bf16_copy(Value&);
Ref<Value> keep_bf16_copy(Value&);  // makes it if need be; at once if the value is there
// An op that writes over a parameter writes over its copy, too: it takes the copy from the old value, and gives what
// becomes of it to the new one.
Ref<Value> take_bf16_copy(const Tensor& x);
void give_bf16_copy(Value&, Ref<Value> copy);
}  // namespace detail

/// x in the dtype that kernels compute in: bf16 becomes f32, all others stay. Gradients that are made of several ops
/// use it, so that no intermediate is rounded to 8 bits.
inline Tensor widened(const Tensor& x) { return x.dtype() == DType::bf16 ? x.to(DType::f32) : x; }

}  // namespace tg
