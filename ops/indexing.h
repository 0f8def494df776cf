/// @file
/// Elements chosen and added by index along one dimension: gather() and scatter_add() have an index per element,
/// index_select() an index per slice; slice_update() writes neighbouring slices in place. Indices are i32 or i64. When
/// an op runs, an index outside [0, size) is an Error that names it and its position; negative ones do not count from
/// the end. Rows of a table are in embedding.h.
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
  Mask saves_in(Mask) const override { return mask_of(1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)); }
  OpWork work(Bufs in, Bufs out) const override;
};
/// (x, index, src) -> x with src added.
struct ScatterAdd : OpOf<ScatterAdd> {
  static constexpr auto kName = "scatter_add";
  size_t dim;
  explicit ScatterAdd(size_t d) : dim(d) {}
  Traits traits() const override { return {.may_alias = mask_of(0)}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return tracked & mask_of(2) ? mask_of(1) : 0; }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)); }
};
/// (x, index) -> slices of x.
struct IndexSelect : OpOf<IndexSelect> {
  static constexpr auto kName = "index_select";
  size_t dim;
  explicit IndexSelect(size_t d) : dim(d) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)); }
  OpWork work(Bufs in, Bufs out) const override;
};
/// (index, dy) -> dx with `size` slices along dim. Slices of dy with equal indices are added in their order. Never
/// sparse. (index, dy, sum) -> sum + dx: in the place of sum, only slices that have an index are written.
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
/// The gradient of input `of` of an op that selects slices of it by index, added to what other ops have given.
Tensor index_select_grad(const Vjp&, size_t of, size_t dim, const Tensor& index, const Tensor& dy);
/// (x, update, start) -> x with the slices from start on replaced by those of update.
struct SliceUpdate : OpOf<SliceUpdate> {
  static constexpr auto kName = "slice_update";
  size_t dim;
  explicit SliceUpdate(size_t d) : dim(d) {}
  Traits traits() const override { return {.updates_in_place = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)); }
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

/// Writes update over the slices [start, start + n) of x along dim, where n is the size of update there; in its other
/// sizes update is as x. x becomes the new value, in place if nobody else holds the old one. start is i32 or i64: (),
/// or (A) with a start for each x[a] of the A that the first dimension has, then dim is another. f64, f32, bf16, i64,
/// i32. The position is read when the op runs, so a compiled function writes at another one in each call. A start
/// outside [0, size - n] is an Error that names it, and nothing is written; on a CUDA device as above, and the other
/// rows are. It has no gradient: an Error if x or update needs one, outside of a NoGradScope.
void slice_update(const Tensor& x, const Tensor& update, const Tensor& start, int64_t dim);

/// The Error of a start at which n slices do not fit into dimension `dim`, which has `size`; `position` is that of the
/// start among several. For kernels.
Error slice_outside(std::string_view op, int64_t start, int64_t position, int64_t n, size_t dim, int64_t size);

/// The Error of an index outside of dimension `dim`, which has `size` slices; `where` is its position in `index`. For
/// kernels.
Error index_outside(std::string_view op, int64_t id, const Dims& where, const Layout& index, size_t dim, int64_t size);

/// The rows of table (V, C), f64, f32 or bf16, that ids (...), i32 or i64, name: (..., C). An id outside [0, V) is an
/// Error that names it and its position, when the op runs; on a CUDA device as said above.
Tensor embedding(const Tensor& ids, const Tensor& table);

/// The Error of an id outside of a table with `rows` rows; `where` is its position in `ids`. For kernels.
Error id_outside(int64_t id, const Dims& where, const Layout& ids, int64_t rows);

}  // namespace tg
