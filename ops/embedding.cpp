#include <tapegrad/ops/check.h>
#include <tapegrad/ops/embedding.h>

namespace tg {
Layouts Embedding::infer(Inputs in) const {
  const Tensor &ids = in[0], &table = in[1];
  check::index(kName, ids);
  TG_CHECK(table.ndim() == 2, shape, "[embedding] table {} is no matrix. It must be (V, C): one row per id.", table);
  check::computes(kName, table);
  Shape s = ids.shape();
  s.push_back(table.shape()[1]);
  return {Layout::contiguous(s, table.dtype(), table.device())};
}
Tensors Embedding::vjp(const Vjp& v) const {
  return {Tensor(), emit1(make<EmbeddingGrad>(v.in_shape(1)[0]), {v.in(0), v.grad()})};
}
Layouts EmbeddingGrad::infer(Inputs in) const {
  return {Layout::contiguous({rows, in[1].shape().back()}, in[1].dtype(), in[1].device())};
}
Tensor embedding(const Tensor& ids, const Tensor& table) { return emit1(stateless<Embedding>(), {ids, table}); }
}  // namespace tg
