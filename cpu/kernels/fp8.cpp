// f32 GEMM on dequantized values: no supported CPU multiplies fp8.
#include <tapegrad/cpu/gemm/gemm.h>
#include <tapegrad/cpu/simd/quantized.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/cpu/simd/scratch.h>
#include <tapegrad/ops/quantized/codes.h>
#include <tapegrad/ops/quantized/fp8_codes.h>
#include <tapegrad/ops/quantized/inputs.h>

#include <array>
#include <atomic>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <Fp8Format f> const std::array<float, 256>& values() {
  static const std::array<float, 256> all = [] {
    std::array<float, 256> v;
    for (int i = 0; i < 256; ++i) v[size_t(i)] = value_of_fp8<f>(uint8_t(i));
    return v;
  }();
  return all;
}

void quantize_fp8(const op::QuantizeFp8& op, Bufs in, Bufs out, Context&) {
  const Buf& x = in[0];
  const int64_t n = x.shape().back();
  std::atomic<bool> bad = false;
  visit_format(op.format, [&]<Fp8Format f>() {
    tg::detail::visit_quantizable(x.dtype(), [&]<class T>() {
      over_rows<T>(x, out[1].numel(), [&](int64_t r, const T* p) {
        uint32_t most = 0;
        for (int64_t j = 0; j < n; ++j) most = std::max(most, magnitude_bits(float(p[j])));
        if (is_bad(most, DType::f32)) return void(bad = true);
        const float absmax = math::detail::float_of(most), scale = fp8_scale<f>(absmax);
        out[1].data<float>()[r] = absmax;
        uint8_t* const to = out[0].data<uint8_t>() + r * n;
        for (int64_t j = 0; j < n; ++j) to[j] = fp8_code_of<f>(float(p[j]), scale);
      });
    });
  });
  if (bad) fail_without_code(op.name(), x, DType::f32);
}

// Rows of fp8 values (rows, n) as floats.
template <class F> void decode(const Buf& codes, Fp8Format format, F&& store) {
  const int64_t n = codes.shape().back();
  if (codes.numel() == 0) return;
  visit_format(format, [&]<Fp8Format f>() {
    const auto& value = values<f>();
    over_rows<uint8_t>(codes, codes.numel() / n, [&](int64_t r, const uint8_t* p) {
      for (int64_t j = 0; j < n; ++j) store(r * n + j, value[p[j]], r);
    });
  });
}
std::vector<float> scales_of(const Buf& absmax, Fp8Format format) {
  std::vector<float> s = flat<float, float>(absmax);
  visit_format(format, [&]<Fp8Format f>() {
    for (float& a : s) a = fp8_scale<f>(a);
  });
  return s;
}
void dequantize_fp8(const op::DequantizeFp8& op, Bufs in, Bufs out, Context&) {
  const auto scales = scales_of(in[1], op.format);
  tg::detail::visit_quantizable(out[0].dtype(), [&]<class T>() {
    T* const y = out[0].data<T>();
    decode(in[0], op.format, [&](int64_t i, float v, int64_t r) { y[i] = T(v * scales[size_t(r)]); });
  });
}

thread_local Scratch t_x, t_weight, t_sums;
void fp8_linear(const op::Fp8Linear& op, Bufs in, Bufs out, Context&) {
  if (out[0].numel() == 0) return;
  const int64_t n = in[1].size(0), k = in[1].size(1), m = out[0].numel() / n;
  float *const x = t_x.get<float>(m * k), *const w = t_weight.get<float>(n * k), *const sums = t_sums.get<float>(m * n);
  decode(in[0], op.of_x, [x](int64_t i, float v, int64_t) { x[i] = v; });
  decode(in[1], op.of_weight, [w](int64_t i, float v, int64_t) { w[i] = v; });
  const auto scale_x = scales_of(in[2], op.of_x), scale_w = scales_of(in[3], op.of_weight);
  const auto bias = in.size() > 4 ? flat<float, float>(in[4]) : std::vector<float>(size_t(n), 0.0f);
  tg::detail::visit_quantizable(out[0].dtype(), [&]<class T>() {
    T* const y = out[0].data<T>();
    const auto finish = [&](float* row, int64_t j, int64_t count) {
      const int64_t i = (row - sums) / n;
      for (int64_t s = 0; s < count; ++s)
        y[i * n + j + s] = T(scaled_fp8(row[s], scale_x[size_t(i)], scale_w[size_t(j + s)], bias[size_t(j + s)]));
    };
    const FunctionRef<void(float*, int64_t, int64_t)> finish_row(finish);
    gemm<float>(m, n, k, MatView<float>{x, k, 1}, MatView<float>{w, 1, k}, sums, n, {.finish = &finish_row});
  });
}
TG_STRIDED_KERNEL(op::QuantizeFp8, cpu, quantize_fp8);
TG_STRIDED_KERNEL(op::DequantizeFp8, cpu, dequantize_fp8);
TG_STRIDED_KERNEL(op::Fp8Linear, cpu, fp8_linear);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
