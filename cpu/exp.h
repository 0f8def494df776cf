// The exponentials of softmax and what is made like it: of differences from a maximum or a log-sum. Elsewhere
// math::exp.
#pragma once
#include <tapegrad/core/math.h>
#include <tapegrad/cpu/vector.h>

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

// 2^x of each lane, for x below 128. Float: 1.5 ulp; 0 below 2^-126, as above; NaN stays. The difference to the next
// integer is exact, so this takes fewer instructions than e^x. Coefficients as in core/math.h.
TG_HD_INLINE Vector<float> exp2_to_zero(Vector<float> x) {
  typedef uint32_t Bits __attribute__((vector_size(kVectorBytes)));
  constexpr float kMagic = 0x1.8p23f;  // adding it rounds to an integer, which is left in the low bits
  x = x < -127.0f ? Vector<float>{} - 127.0f : x;
  const Vector<float> t = x + kMagic, r = x - (t - kMagic);
  Vector<float> q = 0.000153278423f * r + 0.00133909972f;
  q = q * r + 0.00961850304f;
  q = q * r + 0.0555035956f;
  q = q * r + 0.240226477f;
  q = q * r + 0.693147182f;
  const auto power = Vector<float>((Bits(t) << 23) + (127u << 23));
  return q * r * power + power;
}
TG_HD_INLINE Vector<double> exp2_to_zero(Vector<double> x) {
  for (int64_t i = 0; i < kVector<double>; ++i) x[i] = std::exp2(x[i]);
  return x;
}

}  // namespace tg::cpu::TG_ISA_NS
