#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/quantized/fp8.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/shape_ops.h>

#include <vector>

namespace tg {
namespace {
void check_codes(std::string_view op, const Tensor& codes, const Tensor& absmax) {
  TG_CHECK(codes.dtype() == DType::u8, dtype, "[{}] got codes {}. They must be u8: quantize_fp8() makes them.", op,
           codes);
  check::ndim_at_least(op, codes, 1);
  TG_CHECK(absmax.dtype() == DType::f32 && absmax.shape() == codes.shape().without_last(), shape,
           "[{}] the codes are {}, and absmax is {}. It must be f32, with one element for each row.", op, codes,
           absmax);
}
}  // namespace

std::string_view name_of(Fp8Format f) { return f == Fp8Format::e4m3 ? "e4m3" : "e5m2"; }

Layouts op::QuantizeFp8::infer(Inputs in) const {
  const Tensor& x = in[0];
  detail::check_quantizable(kName, x);
  check::ndim_at_least(kName, x, 1);
  return {contiguous_like(x, DType::u8), contiguous_like(x, x.shape().without_last(), DType::f32)};
}
Layouts op::DequantizeFp8::infer(Inputs in) const {
  check_codes(kName, in[0], in[1]);
  detail::check_dequantized(kName, dtype);
  return {contiguous_like(in[0], dtype)};
}
Layouts op::Fp8Linear::infer(Inputs in) const {
  const Tensor &x = in[0], &w = in[1];
  check_codes(kName, x, in[2]);
  const Shape y = check::linear(kName, x, w, in.size() > 4 ? &in[4] : nullptr);
  check_codes(kName, w, in[3]);
  TG_CHECK(
      of_x != Fp8Format::e5m2 || of_weight != Fp8Format::e5m2, value,
      "[fp8_linear] x and weight are both e5m2, and GPUs cannot multiply e5m2 by e5m2. Quantise one of them as e4m3.");
  detail::check_dequantized(kName, dtype);
  if (in.size() > 4)
    TG_CHECK(in[4].dtype() == DType::f32, dtype, "[{}] bias is {}. The op takes f32: use .to(DType::f32).", kName,
             in[4]);
  return {contiguous_like(x, y, dtype)};
}
// Every fp8 value is exact in f32, and so is the product of two.
Tensors op::Fp8Linear::compose(Inputs in) const {
  const Tensor x = dequantize_fp8({in[0], in[2], of_x}), w = dequantize_fp8({in[1], in[3], of_weight});
  return {(in.size() > 4 ? linear(x, w, in[4]) : linear(x, w)).to(dtype)};
}

QuantizedFp8 quantize_fp8(const Tensor& x, Fp8Format f) {
  const Tensors r = emit(make_ref<op::QuantizeFp8>(f), {&x, 1});
  return {r[0], r[1], f};
}
Tensor dequantize_fp8(const QuantizedFp8& q, DType d) {
  return emit1(make_ref<op::DequantizeFp8>(q.format, d), {q.values, q.absmax});
}
Tensor fp8_linear(const QuantizedFp8& x, const QuantizedFp8& weight, const Tensor& bias, DType d) {
  std::vector<Tensor> in{x.values, weight.values, x.absmax, weight.absmax};
  if (bias) in.push_back(bias.to(DType::f32));
  return std::move(emit(make_ref<op::Fp8Linear>(x.format, weight.format, d), in)[0]);
}
}  // namespace tg
