// The exponential of softmax and what is made like it: of differences from a maximum or a log-sum. Elsewhere math::exp.
#pragma once
#include <tapegrad/core/math.h>
#include <tapegrad/cpu/isa.h>

namespace tg::cpu::TG_ISA_NS {

// e^x, as exact as math::exp, in two thirds of its instructions: below 2^-126 it is 0, as that is nothing beside the
// largest, which is 1, and from 2^127.5 on inf (x up to 2^22). NaN stays.
TG_HD_INLINE float exp_to_zero(float x) {
  x = x < -87.9f ? -87.9f : x;
  const auto [q, n] = math::detail::exp_parts(x);
  const uint32_t e = uint32_t(n + 127);  // 0 for n = -127
  return (1.0f + q) * math::detail::float_of((e < 255 ? e : 255) << 23);
}
TG_HD_INLINE double exp_to_zero(double x) { return math::exp(x); }

}  // namespace tg::cpu::TG_ISA_NS
