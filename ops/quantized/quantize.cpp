#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/quantize.h>
#include <tapegrad/ops/shape_ops.h>

#include <cmath>
#include <vector>

namespace tg {
namespace {
// (2^31 - 1) / 128^2: inputs may contain -128.
constexpr int64_t kMostTerms = 131071;

void check_input(std::string_view op, const Tensor& x, DType absmax_dtype) {
  detail::check_quantizable(op, x);
  TG_CHECK(absmax_dtype == DType::f32 || absmax_dtype == DType::f16, dtype,
           "[{}] the dtype of absmax is {}. It must be f32 or f16.", op, absmax_dtype);
}
void check_matrix(std::string_view op, const Tensor& x) {
  TG_CHECK(x.ndim() == 2, shape, "[{}] got {}. It transposes a matrix: use reshape().", op, x);
}
void check_codes(std::string_view op, const Tensor& x) {
  TG_CHECK(x.dtype() == DType::i8, dtype, "[{}] got codes {}. They must be i8: quantize_rowwise() makes them.", op, x);
}
// One per row, or one for all.
void check_absmax(std::string_view op, const Tensor& codes, const Tensor& absmax) {
  TG_CHECK(absmax.dtype() == DType::f32, dtype, "[{}] got absmax {}. The op takes f32: use .to(DType::f32).", op,
           absmax);
  TG_CHECK(absmax.shape() == Shape{1} || absmax.shape() == codes.shape().without_last(), shape,
           "[{}] the codes are {}, and absmax is {}. It must have one element for each row, or one for all: (1).", op,
           codes, absmax);
}
Quantized quantized(const Tensors& r, size_t at = 0) { return {r[at], r[at + 1]}; }
}  // namespace

void detail::check_quantizable(std::string_view op, const Tensor& x) {
  TG_CHECK(is_quantizable(x.dtype()), dtype, "[{}] got {}. It takes f32, bf16 and f16: use .to(DType::f32).", op, x);
}
void detail::check_dequantized(std::string_view op, DType d) {
  TG_CHECK(is_quantizable(d), dtype, "[{}] cannot return {}. Use f32, bf16 or f16.", op, d);
}
Error detail::not_quantized(std::string_view op, const Layout& x, int64_t position, float value) {
  const std::string what =
      fmt::format("[{}] x is {}, and its element {} is {}.", op, x, detail::position_of(position, x.shape),
                  std::isnan(value) ? "NaN" : fmt::format("{}", value));
  if (std::isfinite(value))
    return Error(Error::Kind::value, what +
                                         " The largest magnitude is to be f16, which ends at 65504. Keep it as f32: "
                                         "pass DType::f32 as absmax_dtype.");
  return Error(Error::Kind::non_finite,
               fmt::format("{} Only finite values can be quantized. Lower the learning rate, or clip gradients{}.",
                           what, anomaly_enabled() ? "" : "; an AnomalyScope finds the op that made it"));
}

Layouts op::QuantizeRowwise::infer(Inputs in) const {
  check_input(kName, in[0], absmax_dtype);
  check::ndim_at_least(kName, in[0], 1);
  return {contiguous_like(in[0], DType::i8), contiguous_like(in[0], in[0].shape().without_last(), absmax_dtype)};
}
Layouts op::QuantizeGlobal::infer(Inputs in) const {
  check_input(kName, in[0], absmax_dtype);
  return {contiguous_like(in[0], DType::i8), contiguous_like(in[0], {1}, absmax_dtype)};
}
Layouts op::QuantizeRowsAndColumns::infer(Inputs in) const {
  check_input(kName, in[0], absmax_dtype);
  check_matrix(kName, in[0]);
  const int64_t m = in[0].size(0), n = in[0].size(1);
  return {contiguous_like(in[0], DType::i8), contiguous_like(in[0], {m}, absmax_dtype),
          contiguous_like(in[0], {n, m}, DType::i8), contiguous_like(in[0], {n}, absmax_dtype)};
}
Layouts op::Dequantize::infer(Inputs in) const {
  check_codes(kName, in[0]);
  check::ndim_at_least(kName, in[0], 1);
  check_absmax(kName, in[0], in[1]);
  detail::check_dequantized(kName, dtype);
  return {contiguous_like(in[0], dtype)};
}
Layouts op::Int8Linear::infer(Inputs in) const {
  const Tensor &x = in[0], &w = in[1];
  check_codes(kName, x);
  check_codes(kName, w);
  const Shape y = check::linear(kName, x, w, in.size() > 4 ? &in[4] : nullptr);
  TG_CHECK(w.size(1) <= kMostTerms, value,
           "[int8_linear] x is {}, and weight is {}: a sum of {} products of 8-bit integers may not fit in 32 bits. "
           "The last size must be at most {}. Split it, and add the results.",
           x, w, w.size(1), kMostTerms);
  if (in.size() > 2) {
    check_absmax(kName, x, in[2]);
    check_absmax(kName, w, in[3]);
    detail::check_dequantized(kName, dtype);
  }
  if (in.size() > 4)
    TG_CHECK(in[4].dtype() == DType::f32, dtype, "[{}] bias is {}. The op takes f32: use .to(DType::f32).", kName,
             in[4]);
  return {contiguous_like(x, y, dtype)};
}

Quantized quantize_rowwise(const Tensor& x, DType absmax_dtype) {
  return quantized(emit(make_ref<op::QuantizeRowwise>(absmax_dtype), {&x, 1}));
}
Quantized quantize_global(const Tensor& x, DType absmax_dtype) {
  return quantized(emit(make_ref<op::QuantizeGlobal>(absmax_dtype), {&x, 1}));
}
Quantized quantize_columnwise_transpose(const Tensor& x, DType absmax_dtype) {
  check_matrix("quantize_columnwise_transpose", x);
  return quantize_rowwise(transpose(x, 0, 1), absmax_dtype);
}
Quantized quantize_global_transpose(const Tensor& x, DType absmax_dtype) {
  check_matrix("quantize_global_transpose", x);
  return quantize_global(transpose(x, 0, 1), absmax_dtype);
}
QuantizedRowsAndColumns quantize_rows_and_columns(const Tensor& x, DType absmax_dtype) {
  const Tensors r = emit(make_ref<op::QuantizeRowsAndColumns>(absmax_dtype), {&x, 1});
  return {quantized(r), quantized(r, 2)};
}
Tensor dequantize(const Quantized& q, DType d) {
  return emit1(make_ref<op::Dequantize>(d), {q.values, q.absmax.to(DType::f32)});
}
Tensor int8_linear(const Tensor& x, const Tensor& weight) {
  return emit1(make_ref<op::Int8Linear>(DType::i32), {x, weight});
}
Tensor int8_linear(const Quantized& x, const Quantized& weight, const Tensor& bias, DType d) {
  std::vector<Tensor> in{x.values, weight.values, x.absmax.to(DType::f32), weight.absmax.to(DType::f32)};
  if (bias) in.push_back(bias.to(DType::f32));
  return std::move(emit(make_ref<op::Int8Linear>(d), in)[0]);
}
}  // namespace tg
