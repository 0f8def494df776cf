/// @file
/// Ops of nn::FragmentedLinear, whose input is split into F fragments with a matrix each. fragment_weights() weights
/// the fragments; index_matmul() multiplies each row by the matrix that its index names.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (x, selector) -> softmax of the scores.
struct FragmentWeights : OpOf<FragmentWeights> {
  static constexpr auto kName = "fragment_weights";
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return (tracked & 1) << 1 | (tracked & 2) >> 1; }
  Mask saves_out(Mask) const override { return mask_of(0); }
  Tensors vjp(const Vjp&) const override;
};
/// (a, b, index) -> rows of a times matrices of b.
struct IndexMatmul : ProductOp<IndexMatmul> {
  static constexpr auto kName = "index_matmul";
  bool trans_b;
  explicit IndexMatmul(bool transposed) : trans_b(transposed) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return (tracked & 1) << 1 | (tracked & 2) >> 1 | mask_of(2); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(trans_b); }
  OpWork work(Bufs in, Bufs out) const override;  ///< one matrix per row, up to all matrices
};
}  // namespace op

/// Weights of F fragments: softmax over f of the scores sum_i x[..., f, i] selector[f, i]. Row x (..., in) is F
/// fragments of D contiguous elements, in = F D; selector (F, D), result (..., F). f64, f32, or bf16 (computed in f32,
/// rounded once). A NaN or infinite score is an Error that names row and fragment when the op runs; on a CUDA device
/// see indexing.h.
Tensor fragment_weights(const Tensor& x, const Tensor& selector);

/// y[i] = a[i] b[index[i]], (B, N), with a (B, K), b (E, K, N), or (E, N, K) transposed, and index (B), i32 or i64.
/// Rows with equal indices share a GEMM; unnamed matrices are not read. The gradient of b is dense. f64, f32, or bf16
/// (accumulated in f32). An index outside [0, E) is an Error that names it and its position when the op runs; on a CUDA
/// device see indexing.h.
Tensor index_matmul(const Tensor& a, const Tensor& b, const Tensor& index, bool trans_b = false);

namespace kernel {
/// The Error of a score that is not finite.
Error score_not_finite(int64_t row, int64_t fragment, double score, const Layout& x);
}  // namespace kernel

}  // namespace tg
