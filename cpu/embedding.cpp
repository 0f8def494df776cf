// Kernels of ops/embedding.h. The gradient sorts tokens by id, so that each row of the table has one writer, which adds
// in the order of the tokens.
#include <tapegrad/cpu/rows.h>
#include <tapegrad/ops/embedding.h>

#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
// The ids in row-major order; an Error names the first that is outside [0, rows).
std::vector<int64_t> checked_ids(std::string_view op, const Buf& b, int64_t rows) {
  std::vector<int64_t> ids;
  if (b.numel() == 0) return ids;
  visit_index(b.dtype(), [&]<class I>() {
    for_each<1>(b.shape(), {b.strides()}, [&](int64_t at) { ids.push_back(b.data<I>()[at]); });
  });
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < rows) continue;
    Dims where = b.shape();
    for (size_t d = where.size(), rest = i; d-- > 0; rest /= size_t(b.shape()[d]))
      where[d] = int64_t(rest % size_t(b.shape()[d]));
    TG_CHECK(
        false, value,
        "[{}] id {} at position {} of ids {} is outside of the table. Ids must be in [0, {}), the table's rows. Check "
        "the tokenizer's vocabulary size.",
        op, ids[i], where, *b.layout, rows);
  }
  return ids;
}

void embedding(const Embedding& op, Bufs in, Bufs out, Context&) {
  const auto ids = checked_ids(op.name(), in[0], in[1].size(0));
  const int64_t n = in[1].size(1);
  visit_float(out[0].dtype(), [&]<class T>() {
    const Rows<T> table(in[1]);
    for_row_tiles(int64_t(ids.size()), n, [&](int64_t begin, int64_t end) {
      std::vector<T> scratch;
      for (int64_t i = begin; i < end; ++i) std::copy_n(table(ids[size_t(i)], scratch), n, out[0].data<T>() + i * n);
    });
  });
}

void embedding_grad(const EmbeddingGrad& op, Bufs in, Bufs out, Context&) {
  const auto ids = checked_ids(op.name(), in[0], op.rows);
  const int64_t n = out[0].size(1);
  std::vector<int64_t> first(size_t(op.rows) + 1),
      order(ids.size());  // tokens of row v: order[first[v] .. first[v + 1])
  for (int64_t id : ids) ++first[size_t(id) + 1];
  for (size_t v = 0; v < size_t(op.rows); ++v) first[v + 1] += first[v];
  auto next = first;
  for (size_t i = 0; i < ids.size(); ++i) order[size_t(next[size_t(ids[i])]++)] = int64_t(i);
  visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows<T> dy(in[1]);
    for_row_tiles(op.rows, n, [&](int64_t begin, int64_t end) {
      std::vector<T> scratch;
      std::vector<C> row(static_cast<size_t>(n));
      C* const sum = row.data();
      for (int64_t v = begin; v < end; ++v) {
        std::fill_n(sum, n, C(0));
        for (int64_t k = first[size_t(v)]; k < first[size_t(v) + 1]; ++k) {
          const T* d = dy(order[size_t(k)], scratch);
          for (int64_t j = 0; j < n; ++j) sum[j] += C(d[j]);
        }
        T* to = out[0].data<T>() + v * n;
        for (int64_t j = 0; j < n; ++j) to[j] = T(sum[j]);
      }
    });
  });
}
TG_KERNEL(Embedding, cpu, embedding);
TG_KERNEL(EmbeddingGrad, cpu, embedding_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
