/// @file
/// Frozen weights in blocks of few bits (block_format.h), stored as in files: linear layers, and rows of a table.
/// Weights have no gradient.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/ops/quantized/block_format.h>

namespace tg {
/// A frozen weight (out, in). Its rows are those of all parts, in order.
struct BlockWeight {
  /// Rows of one format.
  struct Part {
    Tensor codes;  ///< u8 (rows, bytes of a row)
    BlockFormat format;
  };
  std::vector<Part> parts;
  /// An Error without parts, or where bytes do not fit the format.
  /// @{
  int64_t in() const;
  int64_t out() const;
  /// @}
};
namespace detail {
using BlockFormats = std::vector<BlockFormat>;
}  // namespace detail
namespace op {

/// (weight (out, in)) -> u8 (out, bytes of a row).
struct QuantizeNf4 : OpOf<QuantizeNf4> {
  static constexpr auto kName = "quantize_nf4";
  Layouts infer(Inputs) const override;
};
/// (ids (...), parts...) -> (..., in).
struct BlockRows : OpOf<BlockRows> {
  static constexpr auto kName = "block_rows";
  detail::BlockFormats formats;
  DType dtype;
  BlockRows(detail::BlockFormats f, DType d) : formats(std::move(f)), dtype(d) {}
  Layouts infer(Inputs) const override;
  OpWork work(Bufs in, Bufs out) const override;
  void key(StructuralHash&) const override;
};
/// (x (..., in), parts...[, bias (out)]) -> (..., out); kGrad: (dy (..., out), parts...) -> dx (..., in).
template <bool kGrad> struct BlockProduct : ProductOp<BlockProduct<kGrad>> {
  static constexpr auto kName = kGrad ? "block_linear_grad" : "block_linear";
  detail::BlockFormats formats;
  MatmulPrecision precision;
  bool unrounded;  // f32 of a bf16 x, on a CPU; no bias
  BlockProduct(detail::BlockFormats f, MatmulPrecision p, bool f32 = false)
      : formats(std::move(f)), precision(p), unrounded(f32) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash&) const override;
};
/// The product of x, and that of dy.
/// @{
using BlockLinear = BlockProduct<false>;
using BlockLinearGrad = BlockProduct<true>;
/// @}
}  // namespace op

/// linear(x, dequantize(weight, x.dtype()), bias): x (..., in), bias (out), result (..., out), of one dtype: f64, f32
/// or bf16. x and bias have gradients.
Tensor block_linear(const Tensor& x, const BlockWeight& weight, const Tensor& bias = {});
namespace detail {
/// unrounded_linear() over blocks.
Tensor unrounded_block_linear(const Tensor& x, const BlockWeight& weight);
}  // namespace detail
/// embedding(ids, dequantize(weight, dtype)) without a gradient: rows that ids (...), i32 or i64, name: (..., in). When
/// the op runs, an id outside [0, out) is an Error, see indexing.h.
Tensor block_rows(const BlockWeight& weight, const Tensor& ids, DType dtype);
/// (out, in) of dtype f64, f32 or bf16.
Tensor dequantize(const BlockWeight& weight, DType dtype);
/// A weight (out, in), f32, bf16 or f16, as blocks of nf4. An Error unless in is a multiple of 64 and all values are
/// finite.
BlockWeight quantize_nf4(const Tensor& weight);

}  // namespace tg
