/// @file
/// Views (a Layout on the input's storage, no kernel): reshape, transpose, slice, split and expand. Copies: concat, and
/// pad, the inverse of slice.
#pragma once
#include <tapegrad/core/op.h>

#include <span>
#include <vector>

namespace tg {
namespace op {

/// (x) -> a view with the strides that reshape() found; else reshape() copies x first.
struct Reshape : ViewOp<Reshape> {
  static constexpr auto kName = "reshape";
  Shape to;
  Strides strides;
  Reshape(const Shape& s, const Strides& st) : to(s), strides(st) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(to), k.add(strides); }
};
/// (x) -> a view with two dimensions swapped.
struct Transpose : ViewOp<Transpose> {
  static constexpr auto kName = "transpose";
  size_t a, b;
  Transpose(size_t i, size_t j) : a(i), b(j) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(a)), k.add(uint64_t(b)); }
};
/// (x) -> a view of [start, stop) of one dimension.
struct Slice : ViewOp<Slice> {
  static constexpr auto kName = "slice";
  size_t dim;
  int64_t start, stop;
  Slice(size_t d, int64_t from, int64_t to) : dim(d), start(from), stop(to) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)), k.add(start), k.add(stop); }
};
/// (x) -> views of consecutive ranges of one dimension.
struct Split : ViewOp<Split> {
  static constexpr auto kName = "split";
  size_t dim;
  std::vector<int64_t> sizes;
  Split(size_t d, std::span<const int64_t> s) : dim(d), sizes(s.begin(), s.end()) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override {
    k.add(uint64_t(dim)), k.add(uint64_t(sizes.size()));
    for (const int64_t n : sizes) k.add(n);
  }
};
/// (x) -> a view that repeats sizes of 1, with new dimensions at the left.
struct Expand : ViewOp<Expand> {
  static constexpr auto kName = "expand";
  Shape to;
  explicit Expand(const Shape& s) : to(s) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(to); }
};
/// (x) -> zeros of shape `to`, with x at `start` of one dimension.
struct Pad : OpOf<Pad> {
  static constexpr auto kName = "pad";
  size_t dim;
  int64_t start;
  Shape to;
  Pad(size_t d, int64_t at, const Shape& s) : dim(d), start(at), to(s) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)), k.add(start), k.add(to); }
};
/// (tensors) -> their concatenated copy.
struct Concat : AlongDim<Concat> {
  static constexpr auto kName = "concat";
  using AlongDim::AlongDim;
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
};
}  // namespace op

/// Elements in row-major order in another shape; one size may be -1 and is computed. A view if x's strides allow
/// it, else a copy. An Error if the number of elements differs.
Tensor reshape(const Tensor& x, const Shape& to);
/// A view of x with the dimensions a and b swapped; negative ones count from the end.
Tensor transpose(const Tensor& x, int64_t a = -2, int64_t b = -1);
/// A view of [start, stop) of a dimension. Negative positions count from the end; stop is clipped to the size.
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t stop);
/// Views of consecutive ranges of a dimension, of the given sizes (at least one), whose sum is its size. @{
Tensors split(const Tensor& x, std::span<const int64_t> sizes, int64_t dim = 0);
inline Tensors split(const Tensor& x, std::initializer_list<int64_t> sizes, int64_t dim = 0) {
  return split(x, std::span(sizes.begin(), sizes.size()), dim);
}
/// @}
/// A view of x in the shape `to`: sizes of 1 are repeated, new dimensions are added at the left.
Tensor expand(const Tensor& x, const Shape& to);
/// Concatenation along dim. At least one tensor; dtypes are equal, and sizes except along dim.
Tensor concat(Inputs, int64_t dim = 0);

namespace detail {
/// x (..., n) as a matrix: (rows, n).
Tensor as_rows(const Tensor& x);
}  // namespace detail

}  // namespace tg
