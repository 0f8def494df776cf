/// @file
/// SwiGLU (Shazeer, GLU variants improve transformer, 2020): a hidden layer gated by SiLU. One GEMM computes both
/// halves as one tensor.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (x (..., 2F)) -> (..., F).
struct Swiglu : OpOf<Swiglu> {
  static constexpr auto kName = "swiglu";
  Traits traits() const override { return {.cheap_to_recompute = true}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(0); }
  Tensors vjp(const Vjp&) const override;
};
/// (x, dy) -> dx (..., 2F).
struct SwigluGrad : OpOf<SwigluGrad> {
  static constexpr auto kName = "swiglu_grad";
  Traits traits() const override { return {.may_alias = mask_of(0)}; }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Tensors compose(Inputs) const override;
};
}  // namespace op

/// silu(x[..., :F]) * x[..., F:] of x (..., 2F), the gate first: (..., F). f64, f32, or bf16 (computed in f32, rounded
/// once). GPU sigmoids for bf16 are within 2^-16 (1/128 of half a unit of bf16) for gates from -87 up; below, where
/// they are less than 2^-125, they may be 0. An Error if the last size is odd.
Tensor swiglu(const Tensor& x);

}  // namespace tg
