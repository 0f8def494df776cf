// Normalisation of the last dimension: LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), each with a
// gradient in one pass over the rows. No running statistics and no other dimensions.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

// (x[, weight[, bias]]) -> (y, mean, rstd). mean and rstd, one per row, are f32, of f64 input f64.
struct LayerNorm : OpOf<LayerNorm> {
  static constexpr auto kName = "layer_norm";
  double eps;
  explicit LayerNorm(double e) : eps(e) {}
  Traits traits() const override { return {.may_alias = bits(0)}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return (tracked & bits(0, 1) ? bits(0) : 0) | (tracked & bits(0)) << 1; }
  Mask saves_out(Mask tracked) const override { return tracked & bits(0, 1) ? bits(1, 2) : 0; }
  Tensors vjp(const Vjp&) const override;
  void key(Key& k) const override { k.add(eps); }
};
// (x[, weight]) -> (y, rstd)
struct RmsNorm : OpOf<RmsNorm> {
  static constexpr auto kName = "rms_norm";
  double eps;
  explicit RmsNorm(double e) : eps(e) {}
  Traits traits() const override { return {.may_alias = bits(0)}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return bits(0) | (tracked & bits(0)) << 1; }
  Mask saves_out(Mask) const override { return bits(1); }
  Tensors vjp(const Vjp&) const override;
  void key(Key& k) const override { k.add(eps); }
};
struct NormWants {  // the outputs of a gradient op: those that are true, in this order
  bool dx = false, dw = false, db = false;
};
struct LayerNormGrad : OpOf<LayerNormGrad> {  // (dy, x, mean, rstd[, weight])
  static constexpr auto kName = "layer_norm_grad";
  NormWants wants;
  explicit LayerNormGrad(NormWants w) : wants(w) {}
  Traits traits() const override { return {.may_alias = bits(0)}; }
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  void key(Key& k) const override { k.add(wants.dx), k.add(wants.dw), k.add(wants.db); }
};
struct RmsNormGrad : OpOf<RmsNormGrad> {  // (dy, x, rstd[, weight])
  static constexpr auto kName = "rms_norm_grad";
  NormWants wants;
  explicit RmsNormGrad(NormWants w) : wants(w) {}
  Traits traits() const override { return {.may_alias = bits(0)}; }
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  void key(Key& k) const override { k.add(wants.dx), k.add(wants.dw); }
};

// (x - mean) / sqrt(var + eps) * weight + bias over the last dimension of x (..., C); var is that of the whole row
// (divided by C). weight and bias are (C) with x's dtype (f64, f32, bf16 computed in f32), or empty: no scale, no
// shift. A bias without a weight is an Error.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
// x / sqrt(mean(x^2) + eps) * weight, otherwise the same.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);

}  // namespace tg
