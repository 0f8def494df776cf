/// @file
/// argmax() and sorting over any dimension, and the k largest elements of the last one. Equal elements rank by index,
/// the lower first; NaN is largest.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (x) -> indices.
struct ArgMax : AlongDim<ArgMax> {
  static constexpr auto kName = "argmax";
  using AlongDim::AlongDim;
  Layouts infer(Inputs) const override;
};
/// (x) -> (values, indices).
struct SelectTopK : OpOf<SelectTopK> {
  static constexpr auto kName = "topk";
  int64_t k;
  explicit SelectTopK(int64_t count) : k(count) {}
  Layouts infer(Inputs) const override;
  Mask saves_out(Mask) const override { return mask_of(1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& to) const override { to.add(k); }
};
/// (x) -> indices that sort the last dimension.
struct ArgSort : OpOf<ArgSort> {
  static constexpr auto kName = "argsort";
  bool descending;
  explicit ArgSort(bool falling) : descending(falling) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(descending); }
};
}  // namespace op

/// Index of the first largest element along a dimension, which is dropped: i64. x is f64, f32, bf16, i64 or i32; no
/// gradient. An Error if the dimension has size 0.
Tensor argmax(const Tensor& x, int64_t dim);

/// Result of topk(), each (..., k): the values in x's dtype, their indices in i64.
struct TopK {
  Tensor values, indices;
};
/// The k largest elements of each row of x (..., n), largest first. Gradients flow through the values. f64, f32, bf16.
/// An Error if k is outside [1, n].
TopK topk(const Tensor& x, int64_t k);

/// Options of sort() and argsort().
struct SortOptions {
  bool descending = false;  ///< largest first
};
/// Indices that sort x along a dimension: x's shape, i64; no gradient. Stable: equal elements stay in order, also where
/// descending; NaN is the largest. x is f64, f32, bf16, i64 or i32; on a GPU of fewer than 2^32 elements.
Tensor argsort(const Tensor& x, int64_t dim = -1, SortOptions = {});
/// Result of sort(), each in x's shape: the values in x's dtype, their indices in i64.
struct Sorted {
  Tensor values, indices;
};
/// x sorted along a dimension, by argsort(). Gradients flow through the values.
Sorted sort(const Tensor& x, int64_t dim = -1, SortOptions = {});

}  // namespace tg
