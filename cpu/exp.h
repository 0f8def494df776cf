// The exponential of softmax and what is made like it: of differences from a maximum or a log-sum. Elsewhere math::exp.
#pragma once
#include <tapegrad/core/math.h>
#include <tapegrad/cpu/isa.h>

namespace tg::cpu::TG_ISA_NS {

// e^x for x <= 88, as exact as math::exp, in two thirds of its instructions: what is below 2^-126 is 0, as it is
// nothing beside the largest, which is 1. NaN stays.
TG_HD_INLINE float exp_to_zero(float x) {
  x = x < -87.9f ? -87.9f : x;
  const auto [q, n] = math::detail::exp_parts(x);
  return (1.0f + q) * math::detail::float_of(uint32_t(n + 127) << 23);  // n = -127 gives 0
}
TG_HD_INLINE double exp_to_zero(double x) { return math::exp(x); }

}  // namespace tg::cpu::TG_ISA_NS
