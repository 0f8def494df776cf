// What kernels of 8-bit codes say of values that have none. For cpu/quantize.cpp and cpu/fp8.cpp.
#pragma once
#include <tapegrad/cpu/loop.h>
#include <tapegrad/ops/quantized/codes.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/quantize.h>

#include <cmath>

namespace tg::cpu::TG_ISA_NS {
inline constexpr float kMostF16 = 65520;  // from here on f16 rounds to infinity

// Whether a magnitude is no number, or none that the state can hold.
inline bool is_bad(uint32_t most, DType state) {
  return most >= kNotFinite || (state == DType::f16 && math::detail::float_of(most) >= kMostF16);
}
// Finds what is_bad() has seen, in row-major order, and throws.
[[noreturn]] inline void fail_without_code(std::string_view op, const Buf& x, DType state) {
  int64_t at = 0, worst = -1;
  float value = 0;
  tg::detail::visit_quantisable(x.dtype(), [&]<class T>() {
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
  throw tg::detail::not_quantised(op, *x.layout, worst, value);
}

}  // namespace tg::cpu::TG_ISA_NS
