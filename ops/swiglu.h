/// @file
/// SwiGLU (Shazeer, GLU variants improve transformer, 2020): a hidden layer gated by SiLU, with both halves in one
/// tensor, so that one product makes both and nothing is put together. Users: Mlp.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

struct Swiglu : OpOf<Swiglu> {
  static constexpr auto kName = "swiglu";
  Traits traits() const override { return {.cheap_to_recompute = true}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return bits(0); }
  Tensors vjp(const Vjp&) const override;
};
/// (x, dy) -> dx (..., 2F), both halves in one pass
struct SwigluGrad : OpOf<SwigluGrad> {
  static constexpr auto kName = "swiglu_grad";
  Traits traits() const override { return {.may_alias = bits(0)}; }
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
};
}  // namespace op

/// x (..., 2F), gate first -> silu(x[..., :F]) x[..., F:], (..., F). f64, f32, bf16 (computed in f32, rounded once). An
/// Error when the last size is odd.
Tensor swiglu(const Tensor& x);

}  // namespace tg
