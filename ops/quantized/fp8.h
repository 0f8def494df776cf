/// @file
/// 8-bit floats and GEMM on them, without gradients (Micikevicius et al., FP8 formats for deep learning, 2022,
/// arXiv:2209.05433). An fp8 value is scaled by absmax / largest: absmax of its row, `largest` of the format.
#pragma once
#include <tapegrad/ops/quantized/quantize.h>

namespace tg {

/// e4m3 (4 bits of exponent, 3 of fraction) up to 448, without infinities, for values and weights; e5m2 up to 57344,
/// for gradients.
enum class Fp8Format : uint8_t { e4m3, e5m2 };
/// "e4m3" or "e5m2".
std::string_view name_of(Fp8Format);

namespace op {

/// (x (..., K)) -> (`values` u8 (..., K), absmax f32 (...)).
struct QuantizeFp8 : OpOf<QuantizeFp8> {
  static constexpr auto kName = "quantize_fp8";
  Fp8Format format;
  explicit QuantizeFp8(Fp8Format f) : format(f) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(int(format)); }
};
/// (`values` u8 (..., K), absmax f32 (...)) -> (..., K).
struct DequantizeFp8 : OpOf<DequantizeFp8> {
  static constexpr auto kName = "dequantize_fp8";
  Fp8Format format;
  DType dtype;
  DequantizeFp8(Fp8Format f, DType d) : format(f), dtype(d) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(int(format)), k.add(int(dtype)); }
};
/// (x u8 (..., K), weight u8 (N, K), absmax of x (...), of the weight (N)[, bias (N)], all f32) -> (..., N).
struct Fp8Linear : ProductOp<Fp8Linear> {
  static constexpr auto kName = "fp8_linear";
  Fp8Format of_x, of_weight;
  DType dtype;
  Fp8Linear(Fp8Format x, Fp8Format w, DType d) : of_x(x), of_weight(w), dtype(d) {}
  Layouts infer(Inputs) const override;
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(int(of_x)), k.add(int(of_weight)), k.add(int(dtype)); }
};
}  // namespace op

/// fp8 values, with the absmax of their rows.
struct QuantizedFp8 {
  Tensor values;  ///< u8
  Tensor absmax;  ///< f32, one per row
  Fp8Format format = Fp8Format::e4m3;
};
/// Quantizes each row of x (..., K), f32, bf16 or f16, any strides, to the fp8 nearest to x / (absmax / largest),
/// computed in f32, ties to even. A row of zeros has `values` 0 and absmax 0. All backends give the same bits. A
/// non_finite Error names the first element that is NaN or infinite.
QuantizedFp8 quantize_fp8(const Tensor& x, Fp8Format = Fp8Format::e4m3);
/// Dequantized values, rounded once to dtype: f32, bf16 or f16.
Tensor dequantize_fp8(const QuantizedFp8&, DType = DType::f32);
/// x (..., K) times weight (N, K) transposed, plus a bias (N): (..., N) of dtype f32, bf16 or f16. Dot products are
/// summed in f32, in a backend-defined order; fp8 tensor cores keep about 14 bits within groups of terms. The sum is
/// scaled by both absmax in f32 and rounded once. They must not both be e5m2, which GPUs cannot multiply.
Tensor fp8_linear(const QuantizedFp8& x, const QuantizedFp8& weight, const Tensor& bias = {}, DType = DType::f32);

}  // namespace tg
