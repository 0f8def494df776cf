/// @file
/// Everyday functions that are made of other ops: views, masks and counts. They have no kernels of their own, so they
/// work on every backend, lazily and in compiled functions, and are differentiated through their parts.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

/// A view of x with its dimensions in another order: permute(x, {2, 0, 1}) has the sizes of dimensions 2, 0 and 1.
/// Negative ones count from the end. An Error unless each dimension stands there once.
Tensor permute(const Tensor& x, const Dims& order);
/// x with a new dimension of size 1 before `dim`; negative ones count from the end of the result. A view where
/// reshape() is one.
Tensor unsqueeze(const Tensor& x, int64_t dim);
/// x without the dimension `dim`, whose size must be 1. A view where reshape() is one.
Tensor squeeze(const Tensor& x, int64_t dim);
/// x with the dimensions from `first` to `last`, both included, merged into one. A view where reshape() is one.
Tensor flatten(const Tensor& x, int64_t first = 0, int64_t last = -1);
/// The tensors, which have one shape and dtype, along a new dimension `dim`: n of (A, B) give (n, A, B) for dim 0.
/// @{
Tensor stack(Inputs, int64_t dim = 0);
inline Tensor stack(std::initializer_list<Tensor> x, int64_t dim = 0) {
  return stack(Inputs(x.begin(), x.size()), dim);
}
/// @}
/// x several times along each dimension: (A, B) with times {2, 3} gives (2 A, 3 B). One number, 0 or more, for each
/// dimension.
Tensor repeat(const Tensor& x, const Dims& times);

/// Masks (bool), element by element; shapes broadcast. An Error for other dtypes.
/// @{
Tensor logical_not(const Tensor& mask);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
/// @}
/// Whether some, or all, elements of a mask (bool) are true: () bool. Of no elements, any is false and all is true.
/// @{
Tensor any(const Tensor& mask);
Tensor all(const Tensor& mask);
/// @}
/// 1 at the index and 0 elsewhere: indices (...) i64 or i32 give (..., classes) of the dtype, f32, f64 or bf16. An
/// Error for an index outside of [0, classes).
Tensor one_hot(const Tensor& indices, int64_t classes, DType = DType::f32);
/// The share of positions where the largest of the logits (..., C) is at the target (...) i64 or i32: () f32. Targets
/// equal to ignore_index do not count, as in cross_entropy(); the result is NaN where none does.
Tensor accuracy(const Tensor& logits, const Tensor& targets, int64_t ignore_index = -100);

}  // namespace tg
