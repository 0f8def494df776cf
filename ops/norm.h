/// @file
/// Normalisation of the last dimension: LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), of a tensor, or
/// of the sum of two as in a residual stream. Each has a gradient in one pass over the rows. There are no running
/// statistics and no other dimensions. Layers use it.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (x[, weight[, bias]]) -> (y, mean, rstd). mean and rstd have one element per row; their dtype is f64 for f64 inputs,
/// else f32.
struct LayerNorm : OpOf<LayerNorm> {
  static constexpr auto kName = "layer_norm";
  static constexpr size_t kTerms = 1;     ///< number of inputs whose sum is normalised
  static constexpr bool kCentred = true;  ///< whether the mean is subtracted
  double eps;
  explicit LayerNorm(double e) : eps(e) {}
  Traits traits() const override { return {.may_alias = bits(0), .cheap_to_recompute = true}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return (tracked & bits(0, 1) ? bits(0) : 0) | (tracked & bits(0)) << 1; }
  Mask saves_out(Mask tracked) const override { return tracked & bits(0, 1) ? bits(1, 2) : 0; }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(eps); }
};
/// (x[, weight]) -> (y, rstd). rstd has one element per row; its dtype is f64 for f64 inputs, else f32.
struct RmsNorm : OpOf<RmsNorm> {
  static constexpr auto kName = "rms_norm";
  static constexpr size_t kTerms = 1;
  static constexpr bool kCentred = false;
  double eps;
  explicit RmsNorm(double e) : eps(e) {}
  Traits traits() const override { return {.may_alias = bits(0), .cheap_to_recompute = true}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return bits(0) | (tracked & bits(0)) << 1; }
  Mask saves_out(Mask) const override { return bits(1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(eps); }
};
/// (x, r[, weight[, bias]]) -> (y, s, mean, rstd): s = x + r in their dtype, and y is its LayerNorm. Backward keeps s,
/// not x or r.
struct AddLayerNorm : OpOf<AddLayerNorm> {
  static constexpr auto kName = "add_layer_norm";
  static constexpr size_t kTerms = 2;
  static constexpr bool kCentred = true;
  double eps;
  explicit AddLayerNorm(double e) : eps(e) {}
  Traits traits() const override { return {.may_alias = bits(0, 1)}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return tracked & bits(0, 1) ? bits(2) : 0; }
  Mask saves_out(Mask tracked) const override { return tracked & bits(0, 1, 2) ? bits(1, 2, 3) : 0; }
  Mask recomputes_from(size_t k, Mask tracked) const override { return k == 0 && saves_out(tracked) ? bits(2, 3) : 0; }
  Tensor recompute(const Vjp&, size_t k) const override;  ///< y, from s
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(eps); }
};
/// (x, r[, weight]) -> (y, s, rstd): s = x + r in their dtype, and y is its RMSNorm. Backward keeps s, not x or r.
struct AddRmsNorm : OpOf<AddRmsNorm> {
  static constexpr auto kName = "add_rms_norm";
  static constexpr size_t kTerms = 2;
  static constexpr bool kCentred = false;
  double eps;
  explicit AddRmsNorm(double e) : eps(e) {}
  Traits traits() const override { return {.may_alias = bits(0, 1)}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return tracked & bits(0, 1) ? bits(2) : 0; }
  Mask saves_out(Mask) const override { return bits(1, 2); }
  Mask recomputes_from(size_t k, Mask) const override { return k == 0 ? bits(2) : 0; }
  Tensor recompute(const Vjp&, size_t k) const override;  ///< y, from s
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(eps); }
};
/// The outputs of a gradient op of a norm: those that are true, in this order.
struct NormWants {
  bool dx = false, dw = false, db = false;
};
/// (dy, x, mean, rstd[, ds][, weight]) -> (dx, dweight, dbias) as `wants` says. ds is a gradient that reached x on
/// another way; it is added to dx after rounding.
struct LayerNormGrad : OpOf<LayerNormGrad> {
  static constexpr auto kName = "layer_norm_grad";
  static constexpr bool kCentred = true;
  NormWants wants;
  bool has_ds;
  explicit LayerNormGrad(NormWants w, bool ds = false) : wants(w), has_ds(ds) {}
  Traits traits() const override { return {.may_alias = has_ds ? bits(0, 4) : bits(0)}; }
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(wants.dx), k.add(wants.dw), k.add(wants.db), k.add(has_ds); }
};
/// (dy, x, rstd[, ds][, weight]) -> (dx, dweight) as `wants` says. ds is a gradient that reached x on another way; it
/// is added to dx after rounding.
struct RmsNormGrad : OpOf<RmsNormGrad> {
  static constexpr auto kName = "rms_norm_grad";
  static constexpr bool kCentred = false;
  NormWants wants;
  bool has_ds;
  explicit RmsNormGrad(NormWants w, bool ds = false) : wants(w), has_ds(ds) {}
  Traits traits() const override { return {.may_alias = has_ds ? bits(0, 3) : bits(0)}; }
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(wants.dx), k.add(wants.dw), k.add(has_ds); }
};
}  // namespace op

/// (x - mean) / sqrt(var + eps) * weight + bias over the last dimension of x (..., C), in x's shape and dtype: f64,
/// f32, or bf16 (computed in f32). var is divided by C. weight and bias are (C) with x's dtype; an empty one means no
/// scale or no shift. A bias without a weight is an Error.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight over the last dimension of x (..., C), in x's shape and dtype: f64, f32, or bf16
/// (computed in f32). weight is (C) with x's dtype; an empty one means no scale.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);

/// The results of add_layer_norm() and add_rms_norm(), each in the shape and dtype of x.
struct AddedNorm {
  Tensor sum, y;
};
/// sum = x + r and y = layer_norm(sum, weight, bias, eps) in one pass over memory, the same bits as by two ops. It
/// serves a residual stream x, to which a block adds r before the next norm reads it. x and r have one shape and one
/// dtype.
AddedNorm add_layer_norm(const Tensor& x, const Tensor& r, const Tensor& weight = {}, const Tensor& bias = {},
                         double eps = 1e-5);
/// sum = x + r and y = rms_norm(sum, weight, eps) in one pass over memory, the same bits as by two ops. x and r have
/// one shape and one dtype.
AddedNorm add_rms_norm(const Tensor& x, const Tensor& r, const Tensor& weight = {}, double eps = 1e-5);

}  // namespace tg
