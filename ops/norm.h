/// @file
/// Normalisation of the last dimension: LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), of a tensor or
/// of the sum of two, as in a residual stream; each with a gradient in one pass over the rows. No running statistics
/// and no other dimensions.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (x[, weight[, bias]]) -> (y, mean, rstd). mean and rstd, one per row, are f32, of f64 input f64.
struct LayerNorm : OpOf<LayerNorm> {
  static constexpr auto kName = "layer_norm";
  static constexpr size_t kTerms = 1;     ///< the first inputs: what is normalised is their sum
  static constexpr bool kCentred = true;  ///< its mean is taken off
  double eps;
  explicit LayerNorm(double e) : eps(e) {}
  Traits traits() const override { return {.may_alias = bits(0), .cheap_to_recompute = true}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return (tracked & bits(0, 1) ? bits(0) : 0) | (tracked & bits(0)) << 1; }
  Mask saves_out(Mask tracked) const override { return tracked & bits(0, 1) ? bits(1, 2) : 0; }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(eps); }
};
/// (x[, weight]) -> (y, rstd)
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
/// (x, r[, weight[, bias]]) -> (y, s, mean, rstd): s = x + r in their dtype, y its LayerNorm. Of the three, s is saved.
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
  Tensor recompute(const Vjp&, size_t k) const override;  ///< y, of s
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(eps); }
};
/// (x, r[, weight]) -> (y, s, rstd)
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
  Tensor recompute(const Vjp&, size_t k) const override;  ///< y, of s
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(eps); }
};
/// the outputs of a gradient op: those that are true, in this order
struct NormWants {
  bool dx = false, dw = false, db = false;
};
/// (dy, x, mean, rstd[, ds][, weight]); ds is a gradient that reached x on another way: dx, rounded, plus ds.
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
/// (dy, x, rstd[, ds][, weight])
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

/// (x - mean) / sqrt(var + eps) * weight + bias over the last dimension of x (..., C); var is that of the whole row
/// (divided by C). weight and bias are (C) with x's dtype (f64, f32, bf16 computed in f32), or empty: no scale, no
/// shift. A bias without a weight is an Error.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight, otherwise the same.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);

struct AddedNorm {
  Tensor sum, y;  ///< each as x
};
/// sum = x + r and y = layer_norm(sum, ...) in one pass over memory, the same bits as one after the other: a residual
/// stream, to which r is added before the next layer reads it. x and r have one shape and one dtype; the rest as above.
AddedNorm add_layer_norm(const Tensor& x, const Tensor& r, const Tensor& weight = {}, const Tensor& bias = {},
                         double eps = 1e-5);
AddedNorm add_rms_norm(const Tensor& x, const Tensor& r, const Tensor& weight = {}, double eps = 1e-5);

}  // namespace tg
