/// @file
/// Reductions over any dimensions, and the running sum along one. topk.h has positions of extremes, norm.h norms of
/// rows.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (x) -> sums.
struct Sum : OpOf<Sum> {
  static constexpr auto kName = "sum";
  uint8_t dims;  ///< one bit per reduced dimension
  bool keep;     ///< keeps reduced dimensions as size 1
  Sum(uint8_t mask, bool keepdim) : dims(mask), keep(keepdim) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dims)), k.add(keep); }
};
/// Layout of Extremum.
Layouts infer_extremum(std::string_view name, const Tensor& x, uint8_t dims, bool keep);
/// Gradient of Extremum.
Tensors vjp_extremum(const Vjp&, uint8_t dims);
/// (x) -> the largest or the smallest elements.
template <bool kLargest> struct Extremum : OpOf<Extremum<kLargest>> {
  static constexpr auto kName = kLargest ? "max" : "min";
  uint8_t dims;
  bool keep;
  Extremum(uint8_t mask, bool keepdim) : dims(mask), keep(keepdim) {}
  Layouts infer(Inputs in) const override { return infer_extremum(kName, in[0], dims, keep); }
  Mask saves_in(Mask) const override { return mask_of(0); }
  Mask saves_out(Mask) const override { return mask_of(0); }
  Tensors vjp(const Vjp& v) const override { return vjp_extremum(v, dims); }
  void key(StructuralHash& k) const override { k.add(uint64_t(dims)), k.add(keep); }
};
/// Maximum over dimensions.
using Max = Extremum<true>;
/// Minimum over dimensions.
using Min = Extremum<false>;
/// (x, y, dy), y the extremum of x -> dy, shared evenly among the elements of x equal to y; 0 elsewhere.
struct ExtremumGrad : OpOf<ExtremumGrad> {
  static constexpr auto kName = "extremum_grad";
  uint8_t dims;
  explicit ExtremumGrad(uint8_t mask) : dims(mask) {}
  Traits traits() const override { return {.may_alias = mask_of(0)}; }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Mask saves_in(Mask) const override { return mask_of(0, 1); }
  Tensors vjp(const Vjp&) const override;  ///< linear in dy, constant in the rest
  void key(StructuralHash& k) const override { k.add(uint64_t(dims)); }
};

/// (x) -> variances.
struct Var : OpOf<Var> {
  static constexpr auto kName = "var";
  uint8_t dims;
  bool keep;
  double correction;
  Var(uint8_t mask, bool keepdim, double c) : dims(mask), keep(keepdim), correction(c) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(0); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dims)), k.add(keep), k.add(correction); }
};
/// (x) -> running sums.
struct Cumsum : OpOf<Cumsum> {
  static constexpr auto kName = "cumsum";
  size_t dim;
  bool reverse;  ///< the gradient
  Cumsum(size_t d, bool backwards) : dim(d), reverse(backwards) {}
  Traits traits() const override { return {.may_alias = mask_of(0)}; }
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)), k.add(reverse); }
};
}  // namespace op

/// Options of reductions. With keepdim, reduced dimensions stay as size 1.
struct ReduceOptions {
  bool keepdim = false;
};
/// Sum or mean over the given dimensions (negative ones count from the end), or over all, in x's dtype: f64,
/// f32, bf16 (accumulated in f32); sums also i64 and i32. The sum of a mask (bool) counts the true elements, in i64;
/// the mean is their share, in f32. The sum of no elements is 0; their mean is an Error.
/// @{
Tensor sum(const Tensor& x);
Tensor sum(const Tensor& x, const Dims& dims, ReduceOptions = {});
Tensor mean(const Tensor& x);
Tensor mean(const Tensor& x, const Dims& dims, ReduceOptions = {});
/// @}
/// Largest or smallest element over the given dimensions (negative ones count from the end), or over all; NaN
/// if one is NaN. x's dtype: f64, f32, bf16, i64, i32. Equal extremes share the gradient. An Error without elements.
/// @{
Tensor max(const Tensor& x);
Tensor max(const Tensor& x, const Dims& dims, ReduceOptions = {});
Tensor min(const Tensor& x);
Tensor min(const Tensor& x, const Dims& dims, ReduceOptions = {});
/// @}

/// Options of var(). With keepdim, reduced dimensions stay as size 1.
struct VarOptions {
  bool keepdim = false;
  double correction = 1;  ///< 1: of a sample (Bessel); 0: of a population
};
/// The variance sum((x - mean)^2) / (n - correction) over the given dimensions (negative ones count from the end), or
/// over all, with n elements each. Two passes. x's dtype: f64, f32, bf16. An Error if n <= correction.
/// @{
Tensor var(const Tensor& x);
Tensor var(const Tensor& x, const Dims& dims, VarOptions = {});
/// @}

/// log(sum(exp(x))) over the given dimensions (negative ones count from the end), or over all, in x's dtype: f64, f32,
/// or bf16 (computed in f32). The maximum is subtracted first, so nothing overflows; -infinity without elements.
/// @{
Tensor logsumexp(const Tensor& x);
Tensor logsumexp(const Tensor& x, const Dims& dims, ReduceOptions = {});
/// @}

/// Running sum: element i along dim is the sum of the elements 0 .. i of x. x's shape and dtype: f64, f32, bf16, i64,
/// i32.
Tensor cumsum(const Tensor& x, int64_t dim);
/// Sum over the last dimension, kept as size 1: (..., n) -> (..., 1).
inline Tensor row_sum(const Tensor& x) { return sum(x, {-1}, {.keepdim = true}); }
namespace detail {
/// Sums x to the shape `to`, over the elements that expanding `to` would repeat: the gradient of broadcasting.
Tensor sum_to(const Tensor& x, const Shape& to);
}  // namespace detail

}  // namespace tg
