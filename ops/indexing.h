/// @file
/// Elements chosen and added by index along one dimension: gather() and scatter_add() have an index per element,
/// index_select() an index per slice. Indices are i32 or i64. When an op runs, an index outside [0, size) is an Error
/// that names it and its position; negative ones do not count from the end. Rows of a table are in embedding.h.
///
/// On a CUDA device nobody waits for the check. The kernel writes nothing at such an index, and reads 0. The next read,
/// copy or synchronize() of that device throws the Error; with TG_SYNC=1 the op does.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (x, index) -> elements of x.
struct Gather : OpOf<Gather> {
  static constexpr auto kName = "gather";
  size_t dim;
  explicit Gather(size_t d) : dim(d) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return bits(1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)); }
};
/// (x, index, src) -> x with src added.
struct ScatterAdd : OpOf<ScatterAdd> {
  static constexpr auto kName = "scatter_add";
  size_t dim;
  explicit ScatterAdd(size_t d) : dim(d) {}
  Traits traits() const override { return {.may_alias = bits(0)}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return tracked & bits(2) ? bits(1) : 0; }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)); }
};
/// (x, index) -> slices of x.
struct IndexSelect : OpOf<IndexSelect> {
  static constexpr auto kName = "index_select";
  size_t dim;
  explicit IndexSelect(size_t d) : dim(d) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return bits(1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)); }
};
/// (index, dy) -> dx with `size` slices along dim. Slices of dy with equal indices are added in their order. Never
/// sparse.
struct IndexSelectGrad : OpOf<IndexSelectGrad> {
  static constexpr auto kName = "index_select_grad";
  size_t dim;
  int64_t size;
  IndexSelectGrad(size_t d, int64_t n) : dim(d), size(n) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return bits(0); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)), k.add(size); }
};
}  // namespace op

/// y[i][j] = x[index[i][j]][j] for dim 0, and so on. index has as many dimensions as x, and no size larger than x's
/// except along dim. y has the shape of index and the dtype of x: f64, f32, bf16, i64 or i32.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// x with src added to it: y[index[i][j]][j] += src[i][j] for dim 0, and so on. index and src have one shape, with as
/// many dimensions as x and no size larger than x's except along dim. x and src have one dtype: f64, f32, bf16 (summed
/// in f32), i64 or i32. Elements with equal indices are added in the order of src, on any number of threads.
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// The slices of x along dim that index (n) names, in its order: x's shape with n as the size of dim. f64, f32, bf16,
/// i64, i32.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);

/// The Error of an index outside of dimension `dim`, which has `size` slices; `where` is its position in `index`. For
/// kernels.
Error index_outside(std::string_view op, int64_t id, const Dims& where, const Layout& index, size_t dim, int64_t size);

}  // namespace tg
