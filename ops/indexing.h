/// @file
/// Reads and adds by index along one dimension: gather() and scatter_add() take an index per element, index_select()
/// one per slice, embedding() one per row of a table. slice_update() writes adjacent slices in place. Indices are i32
/// or i64. When an op runs, an index outside [0, size), negative ones included, is an Error that names it and its
/// position.
///
/// On a CUDA device the check is asynchronous. The kernel skips such an index or reads 0. The next read, copy or
/// synchronize() of that device throws the Error; with TG_SYNC=1 the op does.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (x, index) -> elements of x.
struct Gather : AlongDim<Gather> {
  static constexpr auto kName = "gather";
  using AlongDim::AlongDim;
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(1); }
  Tensors vjp(const Vjp&) const override;
  OpWork work(Bufs in, Bufs out) const override;
};
/// (x, index, src) -> x with src added.
struct ScatterAdd : AlongDim<ScatterAdd> {
  static constexpr auto kName = "scatter_add";
  using AlongDim::AlongDim;
  Traits traits() const override { return {.may_alias = mask_of(0)}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return tracked & mask_of(2) ? mask_of(1) : 0; }
  Tensors vjp(const Vjp&) const override;
};
/// (x, index) -> slices of x.
struct IndexSelect : AlongDim<IndexSelect> {
  static constexpr auto kName = "index_select";
  using AlongDim::AlongDim;
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(1); }
  Tensors vjp(const Vjp&) const override;
  OpWork work(Bufs in, Bufs out) const override;
};
/// (index, dy) -> dense dx with `size` slices along dim; equal indices add in order. (index, dy, sum) -> sum + dx: in
/// place, writing just slices that have an index.
struct IndexSelectGrad : OpOf<IndexSelectGrad> {
  static constexpr auto kName = "index_select_grad";
  size_t dim;
  int64_t size;
  IndexSelectGrad(size_t d, int64_t n) : dim(d), size(n) {}
  Traits traits() const override { return {.may_alias = mask_of(2)}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(0); }
  OpWork work(Bufs in, Bufs out) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)), k.add(size); }
};
/// Gradient of input `of`, whose slices the op selects, plus other ops' gradients.
Tensor index_select_grad(const Vjp&, size_t of, size_t dim, const Tensor& index, const Tensor& dy);
/// (x, update, start) -> x with the slices from start on replaced by update.
struct SliceUpdate : AlongDim<SliceUpdate> {
  static constexpr auto kName = "slice_update";
  using AlongDim::AlongDim;
  Traits traits() const override { return {.updates_in_place = true}; }
  Layouts infer(Inputs) const override;
  OpWork work(Bufs in, Bufs out) const override;
};
/// (ids, table) -> rows of the table.
struct Embedding : OpOf<Embedding> {
  static constexpr auto kName = "embedding";
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(0); }
  Tensors vjp(const Vjp&) const override;
  OpWork work(Bufs in, Bufs out) const override;
};
}  // namespace op

/// y[i][j] = x[index[i][j]][j] for dim 0, and so on. index has x's number of dimensions, and no size larger than x's
/// except along dim. y has index's shape and x's dtype: f64, f32, bf16, i64 or i32.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// x with src added: y[index[i][j]][j] += src[i][j] for dim 0, and so on. index and src have one shape, limited as in
/// gather(). x and src have one dtype: f64, f32, bf16 (summed in f32), i64 or i32. Elements with equal indices are
/// added in src's order, on any number of threads.
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// Slices of x along dim that index (n) names, in order: x's shape with size n along dim. f64, f32, bf16, i64, i32.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);

/// Writes update over the slices [start, start + n) of x along dim; update has size n there, else x's sizes. x becomes
/// the new value, in place if no other handle has the old one. start is i32 or i64: (), or (A) with a start per x[a];
/// then dim is not the first. f64, f32, bf16, i64, i32. The op reads start when it runs: each call of a compiled
/// function writes at a new position. A start outside [0, size - n] is an Error that names it, and nothing is written;
/// on a CUDA device it is asynchronous, and the other rows are written. There is no gradient: an Error if x or update
/// needs one, outside of a NoGradScope.
void slice_update(const Tensor& x, int64_t dim, const Tensor& start, const Tensor& update);

namespace kernel {
/// The Error of a start where n slices do not fit into dimension `dim` of `size`; `position`: of the start.
Error slice_outside(std::string_view op, int64_t start, int64_t position, int64_t n, size_t dim, int64_t size);
/// The Error of an index outside dimension `dim` of `size`; `where`: its position in `index`.
Error index_outside(std::string_view op, int64_t id, const Dims& where, const Layout& index, size_t dim, int64_t size);
/// The Error of an id outside a table of `rows` rows; `where`: its position in `ids`.
Error id_outside(int64_t id, const Dims& where, const Layout& ids, int64_t rows);
}  // namespace kernel

/// Rows of table (V, C), f64, f32 or bf16, that ids (...), i32 or i64, name: (..., C). When the op runs, an id outside
/// [0, V) is an Error, see above.
Tensor embedding(const Tensor& ids, const Tensor& table);

}  // namespace tg
