/// @file
/// LayerNorm (Ba et al., 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension of a tensor, or of the sum
/// of two as in a residual stream. Each gradient is one pass. There are no running statistics.
#pragma once
#include <tapegrad/core/op.h>

#include <optional>

namespace tg {
namespace op {

/// Norm of a tensor (terms 1) or of the sum of two (terms 2), centred (LayerNorm) or not (RMSNorm). Inputs: x, with two
/// terms r, then optional weight and, where centred, bias. Outputs: y, with two terms s = x + r in x's dtype, then mean
/// where centred, and rstd. r has y's dtype: x's, or bf16 where x is f32. Statistics: one per row, f64 for f64 inputs,
/// else f32. Backward of two terms keeps s, not x or r.
template <size_t terms, bool centred> struct Norm : OpOf<Norm<terms, centred>> {
  static constexpr auto kName =
      terms == 1 ? (centred ? "layer_norm" : "rms_norm") : (centred ? "add_layer_norm" : "add_rms_norm");
  static constexpr size_t kTerms = terms;
  static constexpr bool kCentred = centred;
  static constexpr Mask kX = (1u << terms) - 1, kWeight = 1u << terms;  ///< inputs
  static constexpr Mask kKept = (2u << (terms + centred)) - 2;          ///< outputs: all except y
  double eps;
  DType to;  ///< dtype of y
  Norm(double e, DType y) : eps(e), to(y) {}
  Traits traits() const override { return {.may_alias = kX, .cheap_to_recompute = terms == 1}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override {
    return (terms == 1 && tracked & (kX | kWeight) ? kX : 0) | (tracked & kX ? kWeight : 0);
  }
  Mask saves_out(Mask tracked) const override { return tracked & (kX | kWeight) ? kKept : 0; }
  Mask recomputes_from(size_t k, Mask tracked) const override {
    if (terms == 1) return Op::recomputes_from(k, tracked);
    return k == 0 && saves_out(tracked) ? mask_of(2, 3) : 0;
  }
  Tensor recompute(const Vjp&, size_t k) const override;  ///< y; with two terms, from s
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(eps), k.add(int(to)); }
};
/// The four norms.
/// @{
using LayerNorm = Norm<1, true>;
using RmsNorm = Norm<1, false>;
using AddLayerNorm = Norm<2, true>;
using AddRmsNorm = Norm<2, false>;
/// @}
/// Outputs of a norm's gradient op: those that are true, in this order. dr: dx in dy's dtype, for a second term of that
/// dtype.
struct NormWants {
  bool dx = false, dw = false, db = false, dr = false;
};
/// (dy, x[, mean], rstd[, ds][, weight]) -> (dx, dweight, dbias, dr) as `wants` says, with mean where centred. ds:
/// another gradient of x, added to dx after rounding. dy and dr have y's dtype, the rest x's dtype.
template <bool centred> struct NormGrad : OpOf<NormGrad<centred>> {
  static constexpr auto kName = centred ? "layer_norm_grad" : "rms_norm_grad";
  static constexpr bool kCentred = centred;
  NormWants wants;
  bool has_ds;
  explicit NormGrad(NormWants w, bool ds = false) : wants(w), has_ds(ds) {}
  Traits traits() const override { return {.may_alias = mask_of(0) | Mask(has_ds) << (centred ? 4 : 3)}; }
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override {
    k.add(wants.dx), k.add(wants.dw), k.add(wants.db), k.add(wants.dr), k.add(has_ds);
  }
};
/// The two gradients.
/// @{
using LayerNormGrad = NormGrad<true>;
using RmsNormGrad = NormGrad<false>;
/// @}
}  // namespace op

/// (x - mean) / sqrt(var + eps) * weight + bias over the last dimension of x (..., C), in x's shape and dtype: f64,
/// f32, or bf16 (computed in f32). var is divided by C. weight and bias are (C) in x's dtype, or empty; a bias without
/// a weight is an Error. `to` replaces the result's dtype: bf16 for an f32 x.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5,
                  std::optional<DType> to = {});
/// x / sqrt(mean(x^2) + eps) * weight: shapes, dtypes and `to` are those of layer_norm().
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5, std::optional<DType> to = {});

/// Results of add_layer_norm() and add_rms_norm(), in x's shape: the sum in x's dtype, y in r's dtype.
struct AddedNorm {
  Tensor sum, y;
};
/// sum = x + r and y = layer_norm(sum, weight, bias, eps) in one pass over memory, with the bits of two ops and casts:
/// for a residual stream x. One shape. r and y have x's dtype, or bf16 where x is f32.
AddedNorm add_layer_norm(const Tensor& x, const Tensor& r, const Tensor& weight = {}, const Tensor& bias = {},
                         double eps = 1e-5);
/// add_layer_norm() with y = rms_norm(sum, weight, eps).
AddedNorm add_rms_norm(const Tensor& x, const Tensor& r, const Tensor& weight = {}, double eps = 1e-5);

}  // namespace tg
