/// @file
/// Views, scans, masks, counts and draws composed of other ops: on every backend, lazily and in compiled functions,
/// with the gradients of those ops.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/rng.h>

#include <functional>
#include <optional>
#include <span>

namespace tg {

/// A view with permuted dimensions: permute(x, {2, 0, 1}) has the sizes of dimensions 2, 0 and 1. Negative ones count
/// from the end. An Error unless `order` names each dimension once.
Tensor permute(const Tensor& x, const Dims& order);
/// x with a dimension of size 1 before `dim`; negative ones count from the end of the result. A view where reshape() is
/// one.
Tensor unsqueeze(const Tensor& x, int64_t dim);
/// x without the dimension `dim` of size 1. A view where reshape() is one.
Tensor squeeze(const Tensor& x, int64_t dim);
/// x with dimensions `first` to `last`, inclusive, merged into one. A view where reshape() is one.
Tensor flatten(const Tensor& x, int64_t first = 0, int64_t last = -1);
/// Tensors of one shape and dtype along a new dimension `dim`: n of (A, B) give (n, A, B) for dim 0.
Tensor stack(Inputs, int64_t dim = 0);
/// x repeated along each dimension: (A, B) with times {2, 3} gives (2 A, 3 B). One number, 0 or more, per dimension.
Tensor repeat(const Tensor& x, const Dims& times);

/// Every step-th slice of [start, stop) of a dimension, from start, with the rules of slice(). A view unless steps
/// reach beyond x. An Error unless step >= 1.
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t stop, int64_t step);
/// Views of n equal ranges of a dimension. An Error unless n is 1 or more and divides its size; split() takes others.
Tensors chunk(const Tensor& x, int64_t n, int64_t dim = 0);
/// Slices along a dimension, without it: (A, B) gives A of (B) for dim 0. Views where reshape() is one.
Tensors unbind(const Tensor& x, int64_t dim = 0);
/// x with reversed elements along each of the dimensions; negative ones count from the end. A copy: f64, f32, bf16, i64
/// or i32.
Tensor flip(const Tensor& x, const Dims& dims);

/// Running result of an associative function: slice i along dim is f(... f(f(x[0], x[1]), x[2]) ..., x[i]), of x's
/// shape. f gets earlier and later slices of many places at once, any number n >= 1 along dim, and returns the combined
/// ones in that shape and dtype; it must treat slices alike. maximum and mul give the running maximum and product;
/// cumsum() is faster for sums.
///
/// Less than 2 n combinations in 2 log2(n) steps (Blelloch, Prefix sums and their applications, 1990). An Error if f
/// returns another shape or dtype.
Tensor scan(const std::function<Tensor(const Tensor& earlier, const Tensor& later)>& f, const Tensor& x, int64_t dim);
/// scan() of several tensors with one size along dim, which f combines together. h[t] = a[t] h[t - 1] + b[t], with
/// h[-1] = 0, is output 1 of x = {a, b} and f = [](Inputs p, Inputs q) { return Tensors{p[0] * q[0], q[0] * p[1] +
/// q[1]}; }. An Error also for no tensors, other sizes, or another number of results.
Tensors scan(const std::function<Tensors(Inputs earlier, Inputs later)>& f, Inputs x, int64_t dim);
/// x / max(norm, eps) with the norm sum(|x|^p)^(1/p) along a dimension, in x's shape and dtype: f64, f32, or bf16
/// (computed in f32). p is 1 or more; infinity gives the largest |x|. Slices are divided by that first: powers neither
/// overflow nor vanish. An Error for other p, or unless eps is positive and finite.
Tensor normalize(const Tensor& x, double p = 2, int64_t dim = -1, double eps = 1e-12);

/// Lower or upper triangle of each matrix of x (..., R, C), zeros elsewhere: tril keeps column j of row i where j
/// <= i + diagonal, triu where j >= i + diagonal. Any dtype; NaN outside becomes 0, too. An Error for fewer than 2
/// dimensions.
/// @{
Tensor tril(const Tensor& x, int64_t diagonal = 0);
Tensor triu(const Tensor& x, int64_t diagonal = 0);
/// @}
/// Elements, 0 or more, that pad() adds before and after one dimension.
struct Padding {
  int64_t before = 0, after = 0;
};
/// x surrounded by one value, with a Padding per dimension: pad(x, {{1, 0}, {2, 2}}, -1) of (A, B) is (A + 1, B + 4).
/// Any dtype. An Error if that lacks the value, for another number of paddings, or a negative one.
/// @{
Tensor pad(const Tensor& x, std::span<const Padding>, double value = 0);
inline Tensor pad(const Tensor& x, std::initializer_list<Padding> widths, double value = 0) {
  return pad(x, std::span(widths.begin(), widths.size()), value);
}
/// @}
/// x with slices of source added: y[index[i]] += source[i] along dim. index (n), i64 or i32. source has x's shape,
/// except n along dim, and x's dtype: f64, f32, bf16, i64 or i32. Slices with equal indices are added in order. Errors:
/// those of scatter_add(), and wrong shapes.
Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);

/// True for NaN, an infinity, or finite elements: bool, elementwise. f64, f32 or bf16.
/// @{
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);
/// @}

/// Elementwise logic on masks (bool); shapes broadcast. An Error for other dtypes.
/// @{
Tensor logical_not(const Tensor& mask);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
/// @}
/// True if any, or all, elements of a mask (bool) are: () bool. Without elements, any is false and all is true.
/// @{
Tensor any(const Tensor& mask);
Tensor all(const Tensor& mask);
/// @}
/// 1 at the index and 0 elsewhere: indices (...) i64 or i32 give (..., classes) of the dtype, f32, f64 or bf16. An
/// Error for an index outside [0, classes).
Tensor one_hot(const Tensor& indices, int64_t classes, DType = DType::f32);
/// The share of positions where the largest of the logits (..., C) is at the target (...) i64 or i32: () f32. Targets
/// equal to ignore_index do not count; NaN if none counts.
Tensor accuracy(const Tensor& logits, const Tensor& targets, std::optional<int64_t> ignore_index = {});
/// n classes drawn from each row of probabilities (..., C), f64, f32 or bf16, whose sum need not be 1: (..., n) i64, in
/// draw order. A class of probability 0 is never drawn, and without replacement none twice.
///
/// With replacement, or for one draw, bisection finds a uniform number in the row's running sum. Without, the classes
/// with the largest p / e win, e exponential (Efraimidis and Spirakis, Weighted random sampling with a reservoir,
/// 2006). Uniform numbers have 48 bits; all else is f64. A seed gives the same draws on any number of threads and on
/// every device, except for ties within rounding.
///
/// An Error for a row with a negative or infinite number, NaN, or too few positive ones (n without replacement, else
/// 1). On a GPU and in compiled functions gather() raises it when the draw is read.
Tensor multinomial(const Tensor& probabilities, int64_t n, bool replacement, Rng& rng);
/// n numbers from start to stop, both included, with equal steps: (n). f64, f32 or bf16, computed in f64. An Error for
/// a negative n or bounds that are not finite.
Tensor linspace(double start, double stop, int64_t n, DType = DType::f32, Device = {});
/// Uniform integers in [low, high), i64 or i32, from 48 random bits. Advances rng as two rand() do. A seed gives the
/// same integers on every device. An Error unless low < high; they differ by at most 2^48, within [-2^53, 2^53].
Tensor randint(const Shape&, Rng&, int64_t low, int64_t high, DType = DType::i64, Device = {});

}  // namespace tg
