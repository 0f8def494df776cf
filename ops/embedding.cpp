#include <tapegrad/core/check.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/embedding.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/shape_ops.h>

namespace tg {
OpWork op::Embedding::work(Bufs in, Bufs out) const {  // of the rows that are chosen
  OpWork w = Op::work(in.first(1), out);
  w.read += w.written;
  return w;
}
Layouts op::Embedding::infer(Inputs in) const {
  const Tensor &ids = in[0], &table = in[1];
  check::index(kName, ids);
  TG_CHECK(table.ndim() == 2, shape, "[embedding] table {} is no matrix. It must be (V, C): one row per id.", table);
  check::computes(kName, table);
  Shape s = ids.shape();
  s.push_back(table.shape()[1]);
  return {Layout::contiguous(s, table.dtype(), table.device())};
}
Tensors op::Embedding::vjp(const Vjp& v) const {
  const Tensor ids = v.in(0);
  const Shape& table = v.in_shape(1);
  const int64_t n = ids.numel();
  return {Tensor(), index_select_grad(v, 1, 0, reshape(ids, {n}), reshape(v.grad(), {n, table[1]}))};
}
Tensor embedding(const Tensor& ids, const Tensor& table) { return emit1(stateless<op::Embedding>(), {ids, table}); }

Error id_outside(int64_t id, const Dims& where, const Layout& ids, int64_t rows) {
  return Error(
      Error::Kind::value,
      fmt::format("[embedding] id {} at position {} of ids {} is outside of the table. Ids must be in [0, {}), "
                  "the table's rows. Check the tokenizer's vocabulary size; of positions, whether the text fits the "
                  "context.",
                  id, where, ids, rows));
}
}  // namespace tg
