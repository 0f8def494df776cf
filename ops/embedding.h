/// @file
/// Rows of a table, chosen by index: token and position embeddings. index_select() of indexing.h chooses along other
/// dimensions. nn::Embedding uses it.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (ids, table) -> rows of the table.
struct Embedding : OpOf<Embedding> {
  static constexpr auto kName = "embedding";
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return bits(0); }
  Tensors vjp(const Vjp&) const override;
  OpWork work(Bufs in, Bufs out) const override;
};
}  // namespace op

/// The rows of table (V, C), f64, f32 or bf16, that ids (...), i32 or i64, name: (..., C). An id outside [0, V) is an
/// Error that names it and its position, when the op runs; on a CUDA device as indexing.h says.
Tensor embedding(const Tensor& ids, const Tensor& table);

/// The Error of an id outside of a table with `rows` rows; `where` is its position in `ids`. For kernels.
Error id_outside(int64_t id, const Dims& where, const Layout& ids, int64_t rows);

}  // namespace tg
