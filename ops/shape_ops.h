/// @file
/// Views (reshape, transpose, slice, expand: a Layout on the input's storage, no kernel) and the two copying partners:
/// pad, which undoes slice, and concat.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// by strides that reshape() found; it copies first where there are none
struct Reshape : ViewOp<Reshape> {
  static constexpr auto kName = "reshape";
  Shape to;
  Strides strides;
  Reshape(const Shape& s, const Strides& st) : to(s), strides(st) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(to), k.add(strides); }
};
/// swaps two dimensions
struct Transpose : ViewOp<Transpose> {
  static constexpr auto kName = "transpose";
  size_t a, b;
  Transpose(size_t i, size_t j) : a(i), b(j) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(a)), k.add(uint64_t(b)); }
};
/// [start, stop) of one dimension
struct Slice : ViewOp<Slice> {
  static constexpr auto kName = "slice";
  size_t dim;
  int64_t start, stop;
  Slice(size_t d, int64_t from, int64_t to) : dim(d), start(from), stop(to) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)), k.add(start), k.add(stop); }
};
/// consecutive parts of one dimension
struct Split : ViewOp<Split> {
  static constexpr auto kName = "split";
  size_t dim;
  Dims sizes;
  Split(size_t d, const Dims& s) : dim(d), sizes(s) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)), k.add(sizes); }
};
/// repeats sizes of 1, and new dimensions at the left
struct Expand : ViewOp<Expand> {
  static constexpr auto kName = "expand";
  Shape to;
  explicit Expand(const Shape& s) : to(s) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(to); }
};
/// zeros of shape `to` with the input at `start` of one dimension
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
struct Concat : OpOf<Concat> {
  static constexpr auto kName = "concat";
  size_t dim;
  explicit Concat(size_t d) : dim(d) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)); }
};
}  // namespace op

/// The same elements in row-major order under another shape; one size may be -1. A view where x's strides allow it.
Tensor reshape(const Tensor& x, const Shape& to);
Tensor transpose(const Tensor& x, int64_t a = -2, int64_t b = -1);
/// [start, stop) of a dimension; negative positions count from the end, and stop is cut to the size.
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t stop);
/// Parts of the given sizes (at most 8, together the dimension's size), one after the other.
Tensors split(const Tensor& x, const Dims& sizes, int64_t dim = -1);
Tensor expand(const Tensor& x, const Shape& to);
/// Tensors of equal shapes but for `dim`, one after the other; at least one.
Tensor concat(Inputs, int64_t dim = 0);
inline Tensor concat(std::initializer_list<Tensor> x, int64_t dim = 0) {
  return concat(Inputs(x.begin(), x.size()), dim);
}

}  // namespace tg
