#include <tapegrad/core/check.h>
#include <tapegrad/core/profile/work.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>

namespace tg {
namespace {
// An index per element. Except along dim, index may be smaller than x.
void check_elements(std::string_view op, const Tensor& x, const Tensor& index, size_t dim) {
  check::number(op, x);
  check::index(op, index);
  bool ok = index.ndim() == x.ndim();
  for (size_t d = 0; ok && d < x.ndim(); ++d) ok = d == dim || index.shape()[d] <= x.shape()[d];
  TG_CHECK(ok, shape,
           "[{}] index is {}, x is {}. They must have the same number of dimensions, and except along dimension {} no "
           "size of index may exceed x's.",
           op, index, x, dim);
}
// Adds to `w` an element of x per result.
OpWork of_gathered(OpWork w) {
  w.read += w.written;
  return w;
}
}  // namespace

OpWork op::Gather::work(Bufs in, Bufs out) const { return of_gathered(Op::work(in.last(1), out)); }
Layouts op::Gather::infer(Inputs in) const {
  check_elements(kName, in[0], in[1], dim);
  return {contiguous_like(in[0], in[1].shape())};
}
Tensors op::Gather::vjp(const Vjp& v) const {
  return {scatter_add(zeros(v.in_shape(0), v.in_dtype(0), v.device()), int64_t(dim), v.in(1), v.grad())};
}
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  return emit1(make_ref<op::Gather>(check::dim("gather", x, dim)), {x, index});
}

Layouts op::ScatterAdd::infer(Inputs in) const {
  check_elements(kName, in[0], in[1], dim);
  check::same_dtype(kName, in[0], in[2]);
  TG_CHECK(in[1].shape() == in[2].shape(), shape, "[scatter_add] index is {}, src is {}. Their shapes must be equal.",
           in[1], in[2]);
  return {contiguous_like(in[0])};
}
Tensors op::ScatterAdd::vjp(const Vjp& v) const {
  return {v.wants(0) ? v.grad() : Tensor(), Tensor(), v.wants(2) ? gather(v.grad(), int64_t(dim), v.in(1)) : Tensor()};
}
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  return emit1(make_ref<op::ScatterAdd>(check::dim("scatter_add", x, dim)), {x, index, src});
}

OpWork op::IndexSelect::work(Bufs in, Bufs out) const { return of_gathered(Op::work(in.last(1), out)); }
Layouts op::IndexSelect::infer(Inputs in) const {
  check::number(kName, in[0]);
  check::index(kName, in[1]);
  TG_CHECK(in[1].ndim() == 1, shape, "[index_select] index is {}. It must have one dimension: one index per slice.",
           in[1]);
  Shape s = in[0].shape();
  s[dim] = in[1].shape()[0];
  return {contiguous_like(in[0], s)};
}
Tensors op::IndexSelect::vjp(const Vjp& v) const { return {index_select_grad(v, 0, dim, v.in(1), v.grad())}; }
Tensor op::index_select_grad(const Vjp& v, size_t of, size_t dim, const Tensor& index, const Tensor& dy) {
  std::vector<Tensor> in{index, dy};
  if (Tensor sum = v.take_accumulated(of, dy.dtype())) in.push_back(std::move(sum));
  return std::move(detail::emit_donating(make_ref<IndexSelectGrad>(dim, v.in_shape(of)[dim]), std::move(in))[0]);
}
Layouts op::IndexSelectGrad::infer(Inputs in) const {
  Shape s = in[1].shape();
  s[dim] = size;
  TG_CHECK(in.size() == 2 || (in[2].shape() == s && in[2].dtype() == in[1].dtype()), shape,
           "[{}] adds a gradient {} to {}. Shapes and dtypes must be equal.", kName,
           Layout::contiguous(s, in[1].dtype()), in[2]);
  return {contiguous_like(in[1], s)};
}
OpWork op::IndexSelectGrad::work(Bufs in, Bufs out) const {
  if (in.size() == 2) return Op::work(in, out);
  OpWork w = Op::work(in.first(2), {});
  w.written = std::min(detail::distinct_bytes(*in[1].layout), detail::distinct_bytes(*out[0].layout));
  w.read += w.written;
  return w;
}
Tensors op::IndexSelectGrad::vjp(const Vjp& v) const {
  Tensors grads{Tensor(), v.wants(1) ? index_select(v.grad(), int64_t(dim), v.in(0)) : Tensor()};
  if (v.inputs() == 3) grads.emplace_back(v.grad());
  return grads;
}
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  return emit1(make_ref<op::IndexSelect>(check::dim("index_select", x, dim)), {x, index});
}

OpWork op::SliceUpdate::work(Bufs in, Bufs) const {  // writes in place
  return Op::work(in.subspan(1), in.subspan(1, 1));
}
Layouts op::SliceUpdate::infer(Inputs in) const {
  const Tensor &x = in[0], &update = in[1], &start = in[2];
  check::number(kName, x);
  check::same_dtype(kName, x, update);
  check::index(kName, start);
  bool ok = update.ndim() == x.ndim();
  for (size_t d = 0; ok && d < x.ndim(); ++d)
    ok = d == dim ? update.shape()[d] <= x.shape()[d] : update.shape()[d] == x.shape()[d];
  TG_CHECK(ok, shape,
           "[slice_update] update is {}, x is {}. Their sizes must be equal, except along dimension {}, where update's "
           "may be smaller.",
           update, x, dim);
  TG_CHECK(start.ndim() == 0 || (dim > 0 && start.shape() == Shape{x.shape()[0]}), shape,
           "[slice_update] start is {}, x is {}, dim is {}. start must be () or, unless dim is 0, have one number for "
           "each x[i].",
           start, x, dim);
  return {contiguous_like(x)};
}
void slice_update(const Tensor& x, int64_t dim, const Tensor& start, const Tensor& update) {
  const size_t d = check::dim("slice_update", x, dim);
  TG_CHECK(!grad_enabled() || !(x.requires_grad() || (update && update.requires_grad())), missing_gradient,
           "[slice_update] {} <- {}: one of them needs a gradient, and a write in place has none. Use concat(), or "
           "detach() and NoGradScope where no gradient is wanted.",
           x, detail::describe(update));
  detail::emit_update(make_ref<op::SliceUpdate>(d), std::vector{x, update, start}, 1);
}

Error kernel::slice_outside(std::string_view op, int64_t start, int64_t position, int64_t n, size_t dim, int64_t size) {
  return Error(Error::Kind::value, fmt::format("[{}] start {} at position {}: {} slices from there on do not fit into "
                                               "dimension {}, which has size {}. A start must be from 0 to {}.",
                                               op, start, position, n, dim, size, size - n));
}
Error kernel::index_outside(std::string_view op, int64_t id, const Dims& where, const Layout& index, size_t dim,
                            int64_t size) {
  return Error(Error::Kind::value,
               fmt::format("[{}] index {} at position {} of index {} is outside of dimension {}, which has size {}. "
                           "Indices must be in [0, {}); negative ones do not count from the end.",
                           op, id, where, index, dim, size, size));
}

OpWork op::Embedding::work(Bufs in, Bufs out) const { return of_gathered(Op::work(in.first(1), out)); }
Layouts op::Embedding::infer(Inputs in) const {
  const Tensor &ids = in[0], &table = in[1];
  check::index(kName, ids);
  TG_CHECK(table.ndim() == 2, shape, "[embedding] table {} is no matrix. It must be (V, C): one row per id.", table);
  check::computes(kName, table);
  return {contiguous_like(table, ids.shape().followed_by(table.shape()[1]))};
}
Tensors op::Embedding::vjp(const Vjp& v) const {
  const Tensor ids = v.in(0);
  const Shape& table = v.in_shape(1);
  const int64_t n = ids.numel();
  return {Tensor(), index_select_grad(v, 1, 0, reshape(ids, {n}), reshape(v.grad(), {n, table[1]}))};
}
Tensor embedding(const Tensor& ids, const Tensor& table) { return emit1(stateless<op::Embedding>(), {ids, table}); }

Error kernel::id_outside(int64_t id, const Dims& where, const Layout& ids, int64_t rows) {
  return Error(
      Error::Kind::value,
      fmt::format(
          "[embedding] id {} at position {} of ids {} is outside of the table. Ids must be in [0, {}), the table's "
          "rows. Check the tokenizer's vocabulary size, or for position ids whether the text fits the context.",
          id, where, ids, rows));
}
}  // namespace tg
