/// @file
/// Int8 quantization and GEMM, without gradients; switchback.h has layers. A quantized value q stands for q / 127 *
/// absmax, with the absmax of its row or of the tensor (Wortsman et al., Stable and low-precision training for
/// large-scale vision-language models, 2023, arXiv:2304.13013). All backends give the same bits.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (x (..., K)) -> (`values` i8 (..., K), absmax (...)).
struct QuantizeRowwise : OpOf<QuantizeRowwise> {
  static constexpr auto kName = "quantize_rowwise";
  DType absmax_dtype;  ///< dtype of absmax: f32 or f16
  explicit QuantizeRowwise(DType s) : absmax_dtype(s) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(int(absmax_dtype)); }
};
/// (x) -> (`values` i8, of x's shape, absmax (1)).
struct QuantizeGlobal : OpOf<QuantizeGlobal> {
  static constexpr auto kName = "quantize_global";
  DType absmax_dtype;
  explicit QuantizeGlobal(DType s) : absmax_dtype(s) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(int(absmax_dtype)); }
};
/// (x (M, N)) -> (`values` i8 (M, N), absmax (M), those of the transpose i8 (N, M), absmax (N)).
struct QuantizeRowsAndColumns : OpOf<QuantizeRowsAndColumns> {
  static constexpr auto kName = "quantize_both_ways";
  DType absmax_dtype;
  explicit QuantizeRowsAndColumns(DType s) : absmax_dtype(s) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(int(absmax_dtype)); }
};
/// (`values` i8 (..., K), absmax (...) or (1), f32) -> (..., K).
struct Dequantize : OpOf<Dequantize> {
  static constexpr auto kName = "dequantize";
  DType dtype;
  explicit Dequantize(DType d) : dtype(d) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(int(dtype)); }
};
/// (x i8 (..., K), weight i8 (N, K)) -> i32 (..., N), or with absmax of x (...) or (1), absmax of the weight (N) or
/// (1)[, bias (N)], all f32 -> (..., N) of `dtype`.
struct Int8Linear : ProductOp<Int8Linear> {
  static constexpr auto kName = "int8_linear";
  DType dtype;
  explicit Int8Linear(DType d) : dtype(d) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(int(dtype)); }
};
}  // namespace op

namespace detail {
// The Error of an element that is not finite or overflows f16; `position`: its row-major index.
Error not_quantized(std::string_view op, const Layout& x, int64_t position, float value);
}  // namespace detail

/// An int8 tensor and its absmax.
struct Quantized {
  Tensor values;  ///< i8, in [-127, 127]
  /// Per row, in the shape of `values` without the last dimension; or for all, (1). f32 or f16.
  Tensor absmax;
};
/// Quantizes each row of x (..., K), f32, bf16 or f16, any strides: rint(127 (x / absmax)), each operation in f32, ties
/// to even; absmax is (...), rounded to `absmax_dtype`, f32 or f16, after quantization. A row of zeros has `values` 0
/// and absmax 0. A value Error names the first element that is NaN or infinite, or the first absmax that f16 cannot
/// hold.
Quantized quantize_rowwise(const Tensor& x, DType absmax_dtype = DType::f32);
/// quantize_rowwise() by the absmax of all elements, (1).
Quantized quantize_global(const Tensor& x, DType absmax_dtype = DType::f32);
/// quantize_rowwise(transpose(x, 0, 1)): `values` (N, M), absmax (N) of x (M, N).
Quantized quantize_columnwise_transpose(const Tensor& x, DType absmax_dtype = DType::f32);
/// quantize_global(transpose(x, 0, 1)): `values` (N, M) of x (M, N).
Quantized quantize_global_transpose(const Tensor& x, DType absmax_dtype = DType::f32);
/// Result of quantize_rows_and_columns().
struct QuantizedRowsAndColumns {
  Quantized rows;     ///< quantize_rowwise(x)
  Quantized columns;  ///< quantize_columnwise_transpose(x)
};
/// quantize_rowwise() and quantize_columnwise_transpose() of x (M, N), in one op.
QuantizedRowsAndColumns quantize_rows_and_columns(const Tensor& x, DType absmax_dtype = DType::f32);
/// absmax * q / 127, computed in f32 and rounded once to dtype: f32, bf16 or f16.
Tensor dequantize(const Quantized&, DType = DType::f32);

/// x (..., K) times weight (N, K) transposed, exact: i8 -> i32 (..., N). K is at most 131071, so no sum overflows.
Tensor int8_linear(const Tensor& x, const Tensor& weight);
/// GEMM of the dequantized x and weight, plus a bias (N): (..., N) of dtype f32, bf16 or f16. It is fma(absmax_w,
/// absmax_x * (sum / 127^2), bias) in f32, rounded once. The weight's absmax is (N), per row, or (1).
Tensor int8_linear(const Quantized& x, const Quantized& weight, const Tensor& bias = {}, DType = DType::f32);

}  // namespace tg
