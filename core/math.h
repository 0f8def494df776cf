/// @file
/// Elementary functions for kernels, one source for host and device. The float versions have no branches, tables or
/// calls, so that plain loops are vectorised; the double versions call std. Unlike cmath, errors are a few ulp, and
/// sincos() has a bounded domain. exact:: has the functions of random numbers, with the same bits on every target.
#pragma once
#include <cmath>
#include <cstdint>

/// @def TG_HD_INLINE
/// Marks a function that device code may call and that is always inlined: the linker must not merge copies of object
/// files for different instruction sets.
#ifdef __CUDACC__
#define TG_HD_INLINE __host__ __device__ __forceinline__
#else
#define TG_HD_INLINE inline __attribute__((always_inline))
#endif

namespace tg::math {
namespace detail {
// Device code cannot call std::bit_cast, which is also not inlined without optimisation.
TG_HD_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
TG_HD_INLINE float float_of(uint32_t u) { return __builtin_bit_cast(float, u); }

constexpr uint32_t kSign = 0x80000000u;
TG_HD_INLINE float infinity() { return float_of(0x7f800000u); }
TG_HD_INLINE float nan() { return float_of(0x7fc00000u); }
TG_HD_INLINE float abs(float x) { return float_of(bits_of(x) & ~kSign); }
TG_HD_INLINE float with_sign_of(float magnitude, float x) {
  return float_of(bits_of(magnitude) | (bits_of(x) & kSign));
}
// Integer masks: the compiler may turn a select of floats into a branch if it respects traps.
TG_HD_INLINE float blend(uint32_t mask, float yes, float no) {
  return float_of((bits_of(yes) & mask) | (bits_of(no) & ~mask));
}
TG_HD_INLINE float select(bool condition, float yes, float no) { return blend(0u - uint32_t(condition), yes, no); }
TG_HD_INLINE double select(bool condition, double yes, double no) {
  const uint64_t mask = 0u - uint64_t(condition);
  return __builtin_bit_cast(double,
                            (__builtin_bit_cast(uint64_t, yes) & mask) | (__builtin_bit_cast(uint64_t, no) & ~mask));
}
TG_HD_INLINE float fma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  // Otherwise calls fmaf, with the same bits.
  return __builtin_fmaf(a, b, c);
#endif
}
// a * b + c. kExact: rounded once on every target. Otherwise where one instruction does it.
template <bool kExact> TG_HD_INLINE float mad(float a, float b, float c) {
#ifdef __FMA__
  return fma(a, b, c);
#else
  return kExact ? fma(a, b, c) : a * b + c;
#endif
}
TG_HD_INLINE double mad(double a, double b, double c) {
#ifdef __FMA__
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}
// Horner's rule, lowest coefficient first. Coefficients are minimax fits of the relative error, rounded to float one at
// a time, refitting the others.
template <bool kExact> TG_HD_INLINE float poly(float, float c0) { return c0; }
template <bool kExact, class... C> TG_HD_INLINE float poly(float x, float c0, C... c) {
  return mad<kExact>(x, poly<kExact>(x, c...), c0);
}

// kLn2Hi has 9 bits, so n * kLn2Hi is exact for |n| < 2^15.
constexpr float kLn2Hi = 0.693359375f, kLn2Lo = -2.12194440e-4f;

// e^x = 2^n (1 + q) with |q| < 0.42, for |x| < 2^14. q is accurate even if tiny.
struct ExpParts {
  float q;
  int32_t n;
};
TG_HD_INLINE ExpParts exp_parts(float x) {
  constexpr float kMagic = 0x1.8p23f;  // adding rounds to an integer in the low bits
  const float t = mad<false>(x, 1.44269504f, kMagic);
  const float n = t - kMagic;
  const float r = mad<false>(n, -kLn2Lo, mad<false>(n, -kLn2Hi, x));
  const float p = poly<false>(r, 0.5f, 0.166665435f, 0.0416664034f, 0.00836659037f, 0.00139406603f);
  return {mad<false>(r * r, p, r), int32_t(bits_of(t) - bits_of(kMagic))};
}
TG_HD_INLINE float power_of_two(int32_t n) { return float_of(uint32_t(n + 127) << 23); }  // -126 <= n <= 127

// log of a positive normal number times 2^extra.
template <bool kExact> TG_HD_INLINE float log_normal(float x, float extra) {
  const uint32_t u = bits_of(x);
  const int32_t k = int32_t(u - 0x3f2aaaabu) >> 23;          // x = 2^k m with m in [2/3, 4/3)
  const float f = float_of(u - (uint32_t(k) << 23)) - 1.0f;  // exact
  const float p = poly<kExact>(f, -0.5f, 0.333332241f, -0.249996886f, 0.200100332f, -0.166854724f, 0.140110761f,
                               -0.121150501f, 0.139617473f, -0.131919414f);
  const float y = mad<kExact>(f * f, p, f);
  const float n = float(k) + extra;
  return mad<kExact>(n, kLn2Hi, mad<kExact>(n, kLn2Lo, y));
}

// sin and cos of r + quadrant * pi/2, for |r| <= pi/4 (slightly more is harmless).
template <bool kExact> TG_HD_INLINE void sincos_quadrant(float r, uint32_t quadrant, float& s, float& c) {
  const float z = r * r;
  const float sine = with_sign_of(
      mad<kExact>(r * z, poly<kExact>(z, -0.166666552f, 0.00833219197f, -0.00019518788f), r), r);  // -0 stays -0
  const float cosine = poly<kExact>(z, 1.0f, -0.5f, 0.0416666456f, -0.00138873013f, 2.44306684e-05f);
  const uint32_t swap = 0u - (quadrant & 1u);
  s = float_of(bits_of(blend(swap, cosine, sine)) ^ (quadrant & 2u) << 30);
  c = float_of(bits_of(blend(swap, sine, cosine)) ^ ((quadrant + 1u) & 2u) << 30);
}

// The two halves of pow(), in double with errors below 1e-11. Series suffice: pow is rare. Natural logarithm of a float
// >= 0, denormals included: 2 atanh(s) with s = (m - 1) / (m + 1), |s| <= 1/5.
TG_HD_INLINE double log_of_float(float a) {
  const uint64_t u = __builtin_bit_cast(uint64_t, double(a));
  const auto k = int64_t(u - 0x3fe5555555555555u) >> 52;  // a = 2^k m with m in [2/3, 4/3)
  const double m = __builtin_bit_cast(double, u - (uint64_t(k) << 52)), s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 17;
  p = mad(p, z, 1.0 / 15), p = mad(p, z, 1.0 / 13), p = mad(p, z, 1.0 / 11), p = mad(p, z, 1.0 / 9);
  p = mad(p, z, 1.0 / 7), p = mad(p, z, 1.0 / 5), p = mad(p, z, 1.0 / 3);
  const double y = mad(double(int32_t(k)), 0.69314718055994530942, mad(2 * s * z, p, 2 * s));
  const double special = double(select(a == 0.0f, -infinity(), a));
  const float inf = infinity();
  return select((a > 0.0f) & (a < inf), y, special);
}
// e^t, for a result that is rounded to float.
TG_HD_INLINE double exp_to_float(double t) {
  constexpr double kMagic = 0x1.8p52;
  t = select(t > 90.0, 90.0, t);
  t = select(t < -110.0, -110.0, t);
  const double at = mad(t, 1.44269504088896340736, kMagic), n = at - kMagic;
  const double r = mad(n, -0.69314718055994530942, t);
  double p = 1.0 / 3628800;
  p = mad(p, r, 1.0 / 362880), p = mad(p, r, 1.0 / 40320), p = mad(p, r, 1.0 / 5040), p = mad(p, r, 1.0 / 720);
  p = mad(p, r, 1.0 / 120), p = mad(p, r, 1.0 / 24), p = mad(p, r, 1.0 / 6), p = mad(p, r, 0.5);
  const int64_t k = int64_t(__builtin_bit_cast(uint64_t, at) - __builtin_bit_cast(uint64_t, kMagic));
  return (1.0 + mad(r * r, p, r)) * __builtin_bit_cast(double, uint64_t(k + 1023) << 52);
}
// e^x, log of a positive normal number, and x^y of such an x or of 0 (y > 0), in double without std: what a training
// step or a draw computes does not depend on the C library. 2 ulp, x^y |y log x| + 1 ulp.
TG_HD_INLINE double own_exp(double x) {
  constexpr double kMagic = 0x1.8p52, kHi = 0x1.62e42feep-1, kLo = 0x1.a39ef35793c76p-33;
  x = select(x > 1000.0, 1000.0, x);
  x = select(x < -1000.0, -1000.0, x);
  const double at = x * 1.44269504088896340736 + kMagic, n = at - kMagic;
  const double r = (x - n * kHi) - n * kLo;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600, p = p * r + 1.0 / 39916800, p = p * r + 1.0 / 3628800, p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320, p = p * r + 1.0 / 5040, p = p * r + 1.0 / 720, p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24, p = p * r + 1.0 / 6, p = p * r + 0.5;
  const int64_t k = int64_t(__builtin_bit_cast(uint64_t, at) - __builtin_bit_cast(uint64_t, kMagic)), half = k >> 1;
  const double y = 1.0 + (r + r * r * p);
  return y * __builtin_bit_cast(double, uint64_t(half + 1023) << 52) *
         __builtin_bit_cast(double, uint64_t(k - half + 1023) << 52);
}
TG_HD_INLINE double own_log(double x) {
  const uint64_t u = __builtin_bit_cast(uint64_t, x);
  const auto k = int64_t(u - 0x3fe5555555555555u) >> 52;  // x = 2^k m with m in [2/3, 4/3)
  const double m = __builtin_bit_cast(double, u - (uint64_t(k) << 52)), s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 25;
  p = p * z + 1.0 / 23, p = p * z + 1.0 / 21, p = p * z + 1.0 / 19, p = p * z + 1.0 / 17, p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13, p = p * z + 1.0 / 11, p = p * z + 1.0 / 9, p = p * z + 1.0 / 7, p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  return double(int32_t(k)) * 0.69314718055994530942 + (2 * s + 2 * s * z * p);
}
TG_HD_INLINE double own_pow(double x, double y) { return select(x == 0.0, 0.0, own_exp(y * own_log(x))); }
}  // namespace detail

/// e^x. Float: 1.1 ulp; infinity from 88.73 up; subnormal results are rounded once, 0 below -103.98.
/// @{
TG_HD_INLINE float exp(float x) {
  x = detail::select(x > 89.0f, 89.0f, x);
  x = detail::select(x < -104.0f, -104.0f, x);
  const auto [q, n] = detail::exp_parts(x);
  // n may be 128 or -150: two factors, whose first product is exact.
  return (1.0f + q) * detail::power_of_two(n >> 1) * detail::power_of_two(n - (n >> 1));
}
TG_HD_INLINE double exp(double x) { return std::exp(x); }
/// @}

/// Natural logarithm. Float: 1 ulp, also for subnormal x; log(0) is -infinity, NaN below 0.
/// @{
TG_HD_INLINE float log(float x) {
  const uint32_t u = detail::bits_of(x);
  const bool tiny = u < 0x00800000u;
  const float y = detail::log_normal<false>(detail::select(tiny, x * 0x1p23f, x), detail::select(tiny, -23.0f, 0.0f));
  const float not_positive = detail::select(u << 1 == 0, -detail::infinity(), detail::nan());
  const float special = detail::select(u == 0x7f800000u, x, not_positive);
  return detail::select(u - 1u < 0x7f7fffffu, y, special);  // positive and finite
}
TG_HD_INLINE double log(double x) { return std::log(x); }
/// @}

/// log(1 + x), accurate near 0. Float: 1.5 ulp; log1p(-1) is -infinity, NaN below -1, and -0 stays -0.
/// @{
TG_HD_INLINE float log1p(float x) {
  const float u = 1.0f + x;
  const float lost = (x - (u - 1.0f)) / u;  // first-order rounding error of the sum
  const float y = log(u) + detail::select((u > 0.0f) & (u < detail::infinity()), lost, 0.0f);
  return detail::select(u == 1.0f, x, y);
}
TG_HD_INLINE double log1p(double x) { return std::log1p(x); }
/// @}

/// Hyperbolic tangent. Float: 2.5 ulp, as (e^2|x| - 1) / (e^2|x| + 1) with the sign of x. The numerator
/// has no cancellation, so small x keep their digits.
/// @{
TG_HD_INLINE float tanh(float x) {
  const float a = detail::abs(x);
  const auto [q, n] = detail::exp_parts(2.0f * detail::select(a > 10.0f, 10.0f, a));
  const float scale = detail::power_of_two(n);
  const float m = detail::mad<false>(q, scale, scale - 1.0f);  // e^2|x| - 1
  return detail::with_sign_of(m / (m + 2.0f), x);
}
TG_HD_INLINE double tanh(double x) { return std::tanh(x); }
/// @}

/// Error function. Float: 1.3 ulp; x + x P(x^2) below 0.925, 1 - exp(P(|x|)) above, where P is fitted to log(erfc).
/// @{
TG_HD_INLINE float erf(float x) {
  const float a = detail::abs(x);
  const float z = a * a;
  const float small = detail::poly<false>(z, 0.128379166f, -0.376126289f, 0.112836257f, -0.0268557277f, 0.00519238133f,
                                          -0.000804930518f, 7.99380214e-05f);
  const float t = detail::select(a > 4.0f, 4.0f, a);  // erfc(4) < half an ulp of 1
  const float g = detail::poly<false>(t, -0.000203407297f, -1.1276437f, -0.637235999f, -0.103884384f, 0.0222041216f,
                                      -0.00303748227f, 0.00019535044f);
  const auto [q, n] = detail::exp_parts(g);
  const float large = 1.0f - (1.0f + q) * detail::power_of_two(n);
  return detail::with_sign_of(detail::select(a < 0.925f, detail::mad<false>(a, small, a), large), x);
}
TG_HD_INLINE double erf(double x) { return std::erf(x); }
/// @}

/// 1 / (1 + e^-x). Float: 2.3 ulp. It uses e^-|x|: nothing overflows, and small results keep their digits.
/// @{
TG_HD_INLINE float sigmoid(float x) {
  const float e = exp(-detail::abs(x));
  return detail::select(x < 0.0f, e, 1.0f) / (1.0f + e);
}
TG_HD_INLINE double sigmoid(double x) {
  const double e = std::exp(-std::fabs(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
/// @}

namespace detail {
// |x| < 2^29, or NaN. n * kHalfPiHi is exact for every x.
TG_HD_INLINE void sincos_reduced(double x, float& s, float& c) {
  constexpr double kMagic = 0x1.8p52, kHalfPiHi = 0x1.921fb4p0, kHalfPiLo = 0x1.4442d18469899p-24;
  const double t = mad(x, 0.63661977236758134308, kMagic);
  const double n = t - kMagic;
  const float r = float(mad(n, -kHalfPiLo, mad(n, -kHalfPiHi, x)));
  sincos_quadrant<false>(r, uint32_t(__builtin_bit_cast(uint64_t, t)), s, c);
}
}  // namespace detail
/// s = sin(x), c = cos(x), x in radians, reduced in double. 1.6 ulp for |x| < 2^29. NaN for larger |x| (adjacent floats
/// are ten periods apart), infinities and NaN.
TG_HD_INLINE void sincos(float x, float& s, float& c) {
  detail::sincos_reduced(double(detail::select(detail::abs(x) < 0x1p29f, x, detail::nan())), s, c);
}
/// s = sin(x), c = cos(x), for angles that float would round. 1.6 ulp, or 2^-48 near a zero; NaN for |x| >= 2^29.
TG_HD_INLINE void sincos(double x, float& s, float& c) {
  detail::sincos_reduced(std::fabs(x) < 0x1p29 ? x : double(detail::nan()), s, c);
}
/// s = sin(x), c = cos(x), by std.
TG_HD_INLINE void sincos(double x, double& s, double& c) {
  s = std::sin(x);
  c = std::cos(x);
}

/// Sine and cosine of x in radians. Float: 1.6 ulp, NaN for |x| >= 2^29.
/// @{
TG_HD_INLINE float sin(float x) {
  float s, c;
  sincos(x, s, c);
  return s;
}
TG_HD_INLINE double sin(double x) { return std::sin(x); }
TG_HD_INLINE float cos(float x) {
  float s, c;
  sincos(x, s, c);
  return c;
}
TG_HD_INLINE double cos(double x) { return std::cos(x); }
/// @}

/// Square root, correctly rounded. rsqrt() is 1 / sqrt(x), rounded twice: 1.5 ulp.
/// @{
TG_HD_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
TG_HD_INLINE double sqrt(double x) { return __builtin_sqrt(x); }
TG_HD_INLINE float rsqrt(float x) { return 1.0f / sqrt(x); }
TG_HD_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
/// @}

/// Selects one of two numbers bit for bit, without a branch.
/// @{
TG_HD_INLINE float select(bool condition, float yes, float no) { return detail::select(condition, yes, no); }
TG_HD_INLINE double select(bool condition, double yes, double no) { return detail::select(condition, yes, no); }
TG_HD_INLINE int32_t select(bool condition, int32_t yes, int32_t no) { return condition ? yes : no; }
TG_HD_INLINE int64_t select(bool condition, int64_t yes, int64_t no) { return condition ? yes : no; }
/// @}

/// Absolute value; undefined for the smallest integer.
/// @{
TG_HD_INLINE float abs(float x) { return detail::abs(x); }
TG_HD_INLINE double abs(double x) { return __builtin_fabs(x); }
TG_HD_INLINE int32_t abs(int32_t x) { return x < 0 ? -x : x; }
TG_HD_INLINE int64_t abs(int64_t x) { return x < 0 ? -x : x; }
/// @}

/// round() rounds to nearest, ties to even; floor() rounds down. Infinities, NaN and -0 are unchanged.
/// @{
TG_HD_INLINE float round(float x) {
  const float a = detail::abs(x), r = (a + 0x1p23f) - 0x1p23f;  // floats >= 2^23 are whole
  return detail::with_sign_of(detail::select(a < 0x1p23f, r, a), x);
}
TG_HD_INLINE double round(double x) { return std::rint(x); }
TG_HD_INLINE float floor(float x) {
  const float r = round(x);
  return detail::select(r > x, r - 1.0f, r);
}
TG_HD_INLINE double floor(double x) { return std::floor(x); }
/// @}

/// x^y, with the special values of IEEE 754: x^0 and 1^y are 1 even for NaN; a negative x with a fractional y is NaN.
/// Squares are x * x. Float: exp(y log|x|) in double, 0.51 ulp, so results that are floats are exact.
/// @{
TG_HD_INLINE float pow(float x, float y) {
  const float inf = detail::infinity();
  const double l = detail::log_of_float(detail::abs(x));
  const double r = detail::exp_to_float(double(y) * l);
  const float whole = detail::abs(y);  // floats >= 2^24 are even
  const double h = 0.5 * double(detail::select(whole < 0x1p25f, whole, 0x1p25f));
  constexpr double kMagic = 0x1.8p52;
  const bool is_even = (h + kMagic) - kMagic == h, is_whole = (2 * h + kMagic) - kMagic == 2 * h;
  const float magnitude = float(r);
  const bool negative = detail::bits_of(x) >> 31;
  float p = detail::select(negative & is_whole & !is_even, -magnitude, magnitude);
  p = detail::select((x < 0.0f) & !is_whole & (whole != inf) & (x != -inf), detail::nan(), p);
  p = detail::select(y == 2.0f, x * x, p);
  const bool one = (y == 0.0f) | (x == 1.0f) | ((x == -1.0f) & (whole == inf));
  return detail::select(one, 1.0f, p);
}
TG_HD_INLINE double pow(double x, double y) { return y == 2.0 ? x * x : std::pow(x, y); }
/// @}

/// The same bits on every processor, compiler and contraction setting: explicit fma, otherwise exact or uncontractible
/// operations.
namespace exact {
/// Natural logarithm of a positive normal number.
TG_HD_INLINE float log(float x) { return detail::log_normal<true>(x, 0.0f); }

/// s = sin(2 pi u), c = cos(2 pi u), u in [0, 1).
TG_HD_INLINE void sincos2pi(float u, float& s, float& c) {
  constexpr float kMagic = 0x1.8p23f;
  const float t = detail::fma(u, 4.0f, kMagic);
  const float r = detail::fma(t - kMagic, -0.25f, u);  // exact, |r| <= 1/8
  detail::sincos_quadrant<true>(r * 6.28318531f, detail::bits_of(t), s, c);
}
}  // namespace exact
}  // namespace tg::math
