// Exponentials of differences from a maximum or a log-sum.
#pragma once
#include <tapegrad/core/math.h>
#include <tapegrad/cpu/simd/vector.h>

#include <limits>

namespace tg::cpu::TG_ISA_NS {

// e^x and 2^x (x below 128), for single numbers too. Float: 1.5 ulp; 0 below 2^-126, negligible next to the largest
// term, 1; e^x is inf where it exceeds float (x up to 2^22); NaN stays. Levels 3 and 4 have the same bits: every
// product that a sum takes is an fma.
#if TG_ISA_LEVEL >= 3
// 2^n 2^(i/16) e^r: 2^(i/16) is one of 16 constants in registers, so small r needs few terms.
namespace sixteenths {
using V = Vector<float>;
inline constexpr float kMagic = 0x1.8p19f;  // rounds to sixteenths; low four bits: i
alignas(64) inline constexpr float kRoots[] = {1.0f,       1.0442737f, 1.0905077f, 1.1387886f, 1.1892071f, 1.2418578f,
                                               1.2968396f, 1.3542556f, 1.4142135f, 1.4768262f, 1.5422108f, 1.6104903f,
                                               1.6817929f, 1.7562522f, 1.8340081f, 1.9152066f};
TG_HD_INLINE V number(float x) { return V{} + x; }
// (1 + q) 2^n from `least` to `most`, 0 below, inf above; t: n + kMagic.
TG_HD_INLINE V power(V q, V t, [[maybe_unused]] V n, V x, float least, [[maybe_unused]] float most) {
#if TG_ISA_LEVEL == 4
  const V root = _mm512_permutexvar_ps(__m512i(t), load_vector(kRoots));
  const auto counts = _mm512_cmp_ps_mask(x, number(least), _CMP_NLT_UQ);  // passes NaN
  return _mm512_maskz_scalef_ps(counts, fma(root, q, root), n);
#else
  const __m256i i = __m256i(t);
  const V root = _mm256_blendv_ps(_mm256_permutevar8x32_ps(load_vector(kRoots), i),
                                  _mm256_permutevar8x32_ps(load_vector(kRoots + 8), i), V(_mm256_slli_epi32(i, 28)));
  const __m256i whole = _mm256_slli_epi32(_mm256_srli_epi32(i, 4), 23);  // the integer part of n, as an exponent
  const V y = V(_mm256_add_epi32(__m256i(fma(root, q, root)), whole));
  const V large = x + number(std::numeric_limits<float>::infinity());  // or NaN
  return _mm256_and_ps(_mm256_blendv_ps(y, large, _mm256_cmp_ps(x, number(most), _CMP_NLE_UQ)),
                       _mm256_cmp_ps(x, number(least), _CMP_NLT_UQ));
#endif
}
}  // namespace sixteenths
TG_HD_INLINE Vector<float> exp_to_zero(Vector<float> x) {
  using namespace sixteenths;
  const V t = fma(x, number(1.44269504f), number(kMagic)), n = t - kMagic;
  const V r = fma(n, number(-math::detail::kLn2Lo), fma(n, number(-math::detail::kLn2Hi), x));
  return power(fma(r * r, fma(number(0.166666672f), r, number(0.500016212f)), r), t, n, x, -87.3365f, 88.7228317f);
}
TG_HD_INLINE Vector<float> exp2_to_zero(Vector<float> x) {
  using namespace sixteenths;
  const V t = x + kMagic, n = t - kMagic, r = x - n;
  return power(fma(fma(number(0.05550595f), r, number(0.24023429f)), r, number(0.693147182f)) * r, t, n, x, -126.0f,
               0x1.fffffep6f);
}
TG_HD_INLINE float exp_to_zero(float x) { return exp_to_zero(sixteenths::number(x))[0]; }
#else
TG_HD_INLINE float exp_to_zero(float x) {
  x = x < -87.9f ? -87.9f : x;
  const auto [q, n] = math::detail::exp_parts(x);
  const uint32_t e = uint32_t(n + 127);  // 0 for n = -127
  return (1.0f + q) * math::detail::float_of((e < 255 ? e : 255) << 23);
}
TG_HD_INLINE Vector<float> exp_to_zero(Vector<float> x) {
  for (int64_t k = 0; k < kVector<float>; ++k) x[k] = exp_to_zero(x[k]);
  return x;
}
TG_HD_INLINE Vector<float> exp2_to_zero(Vector<float> x) {
  for (int64_t k = 0; k < kVector<float>; ++k) {
    const float y = x[k] < -127.0f ? -127.0f : x[k], t = y + 0x1.8p23f;  // integer in the low bits
    x[k] = exp_to_zero((y - (t - 0x1.8p23f)) * 0.693147182f) *
           math::detail::float_of((math::detail::bits_of(t) << 23) + (127u << 23));
  }
  return x;
}
#endif
TG_HD_INLINE double exp_to_zero(double x) { return math::exp(x); }
TG_HD_INLINE Vector<double> exp_to_zero(Vector<double> x) {
  for (int64_t k = 0; k < kVector<double>; ++k) x[k] = exp_to_zero(x[k]);
  return x;
}
TG_HD_INLINE Vector<double> exp2_to_zero(Vector<double> x) {
  for (int64_t i = 0; i < kVector<double>; ++i) x[i] = std::exp2(x[i]);
  return x;
}

}  // namespace tg::cpu::TG_ISA_NS
