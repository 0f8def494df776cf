// int8 quantization by quotients and by products.
#pragma once
#include <tapegrad/cpu/simd/loop.h>
#include <tapegrad/ops/quantized/codes.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/quantize.h>

#include <cmath>

namespace tg::cpu::TG_ISA_NS {
// For bf16 and f16, x * (127 / absmax) quantizes exactly as 127 * x / absmax. Inputs have at most 11 bits: a value that
// is no tie is at least 1 / (254 * 2047) (relative) from one, three times the factor's error. Ties occur at |x| =
// absmax / 2, which rounds to 64, and where 127 divides the bits of absmax: these are divided, as are f32 and values
// without a finite factor.
template <class T> bool has_factor(float absmax) {
  return sizeof(T) == 2 && absmax >= 0x1p-100f && ((math::detail::bits_of(absmax) & 0x7fffffu) | 0x800000u) % 127 != 0;
}
inline float factor_of(float absmax) { return 127.0f / absmax * (1 + 0x1p-21f); }
inline int32_t by_product(float x, float factor) { return int32_t(__builtin_rintf(x * factor)); }
inline int32_t by_quotient(float x, float absmax) { return int32_t(code_of(x, absmax)); }

inline constexpr float kMostF16 = 65520;  // f16: infinity

// Not finite, or too large for the state.
inline bool is_bad(uint32_t most, DType state) {
  return most >= kNotFinite || (state == DType::f16 && math::detail::float_of(most) >= kMostF16);
}
[[noreturn]] inline void fail_without_code(std::string_view op, const Buf& x, DType state) {
  int64_t at = 0, worst = -1;
  float value = 0;
  tg::detail::visit_quantizable(x.dtype(), [&]<class T>() {
    for_indices<1>(x.shape(), {x.strides()}, [&](int64_t offset) {
      const float v = float(x.data<T>()[offset]);
      if (worst < 0 && !std::isfinite(v)) worst = at, value = v;
      ++at;
    });
    if (worst >= 0) return;
    at = 0;
    for_indices<1>(x.shape(), {x.strides()}, [&](int64_t offset) {
      const float v = float(x.data<T>()[offset]);
      if (worst < 0 && is_bad(magnitude_bits(v), state)) worst = at, value = v;
      ++at;
    });
  });
  throw tg::detail::not_quantized(op, *x.layout, worst, value);
}

}  // namespace tg::cpu::TG_ISA_NS
