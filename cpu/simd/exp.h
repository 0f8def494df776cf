// Exponentials of differences from a maximum or a log-sum.
#pragma once
#include <tapegrad/core/math.h>
#include <tapegrad/cpu/simd/vector.h>

#include <limits>

namespace tg::cpu::TG_ISA_NS {

// As exact as math::exp, in two thirds of its instructions. 0 below 2^-126, negligible next to the largest term, 1. inf
// from 2^127.5 on (x up to 2^22). NaN stays.
TG_HD_INLINE float exp_to_zero(float x) {
  x = x < -87.9f ? -87.9f : x;
  const auto [q, n] = math::detail::exp_parts(x);
  const uint32_t e = uint32_t(n + 127);  // 0 for n = -127
  return (1.0f + q) * math::detail::float_of((e < 255 ? e : 255) << 23);
}
TG_HD_INLINE double exp_to_zero(double x) { return math::exp(x); }

// exp_to_zero() and 2^x (x below 128). Float: 1.5 ulp; 0 below 2^-126; NaN stays. Bound by the dependency chain: terms
// are summed in pairs, range errors corrected last.
#if TG_ISA_LEVEL == 4
// 2^n 2^(i/16) e^r: 2^(i/16) is one of 16 constants in a register, so small r needs few terms.
namespace sixteenths {
using V = Vector<float>;
inline constexpr float kMagic = 0x1.8p19f;  // rounds to sixteenths; low four bits: i
// (1 + q) 2^n where x >= `least`, else 0; t: n + kMagic.
TG_HD_INLINE V power(V q, V t, V n, V x, float least) {
  constexpr V kRoots = {1.0f,       1.0442737f, 1.0905077f, 1.1387886f, 1.1892071f, 1.2418578f, 1.2968396f, 1.3542556f,
                        1.4142135f, 1.4768262f, 1.5422108f, 1.6104903f, 1.6817929f, 1.7562522f, 1.8340081f, 1.9152066f};
#ifdef __clang__
  const V root = __builtin_ia32_permvarsf512(kRoots, Vector<int32_t>(t));
#else
  const V root = __builtin_shuffle(kRoots, Vector<int32_t>(t));
#endif
  constexpr int kNotLess = 0x15, kRounding = 4;  // passes NaN; default rounding
  const auto counts = __builtin_ia32_cmpps512_mask(x, V{} + least, kNotLess, 0xffff, kRounding);
  return __builtin_ia32_scalefps512_mask(root * q + root, n, V{}, counts, kRounding);
}
}  // namespace sixteenths
TG_HD_INLINE Vector<float> exp_to_zero(Vector<float> x) {
  using sixteenths::V, sixteenths::kMagic;
  const V t = x * 1.44269504f + kMagic, n = t - kMagic;
  const V r = (x - n * math::detail::kLn2Hi) - n * math::detail::kLn2Lo;
  return sixteenths::power((r * r) * (0.166666672f * r + 0.500016212f) + r, t, n, x, -87.3365f);
}
TG_HD_INLINE Vector<float> exp2_to_zero(Vector<float> x) {
  using sixteenths::V, sixteenths::kMagic;
  const V t = x + kMagic, n = t - kMagic, r = x - n;
  return sixteenths::power(((0.05550595f * r + 0.24023429f) * r + 0.693147182f) * r, t, n, x, -126.0f);
}
#else
TG_HD_INLINE Vector<float> exp_to_zero(Vector<float> x) {
  using V = Vector<float>;
  constexpr float kMagic = 0x1.8p23f + 127;  // the bits of 2^n are the sum's low bits
  const V t = x * 1.44269504f + kMagic, n = t - kMagic;
  const V r = (x - n * math::detail::kLn2Hi) - n * math::detail::kLn2Lo, z = r * r;
  const V p = (0.00139406603f * z + (0.00836659037f * r + 0.0416664034f)) * z + (0.166665435f * r + 0.5f);
  const V power = reinterpret_cast<V>(reinterpret_cast<Vector<uint32_t>>(t) << 23);
  const V y = (p * z + r) * power + power;
  const V small = x < -87.4f ? V{} : y;
  return x > 88.37f ? V{} + std::numeric_limits<float>::infinity() : small;  // 2^127.5
}
TG_HD_INLINE Vector<float> exp2_to_zero(Vector<float> x) {
  typedef uint32_t Bits __attribute__((vector_size(kVectorBytes)));
  constexpr float kMagic = 0x1.8p23f;  // integer in the low bits
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
#endif
TG_HD_INLINE Vector<double> exp_to_zero(Vector<double> x) {
  for (int64_t k = 0; k < kVector<double>; ++k) x[k] = exp_to_zero(x[k]);
  return x;
}
TG_HD_INLINE Vector<double> exp2_to_zero(Vector<double> x) {
  for (int64_t i = 0; i < kVector<double>; ++i) x[i] = std::exp2(x[i]);
  return x;
}

}  // namespace tg::cpu::TG_ISA_NS
