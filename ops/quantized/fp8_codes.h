/// @file
/// Conversions between fp8 and f32, one source for host and device: both give the same bits. For the kernels of fp8.h.
#pragma once
#include <tapegrad/core/math.h>
#include <tapegrad/ops/quantized/codes.h>
#include <tapegrad/ops/quantized/fp8.h>

namespace tg {

/// Bits of fraction, bias of the exponent, and largest value of a format.
template <Fp8Format> struct Fp8;
/// @cond
template <> struct Fp8<Fp8Format::e4m3> {
  static constexpr int kFraction = 3, kBias = 7;
  static constexpr float kLargest = 448.0f;
};
template <> struct Fp8<Fp8Format::e5m2> {
  static constexpr int kFraction = 2, kBias = 15;
  static constexpr float kLargest = 57344.0f;
};
/// @endcond
/// Calls `f.template operator()<format>()`.
template <class F> void visit_format(Fp8Format format, F&& f) {
  format == Fp8Format::e4m3 ? f.template operator()<Fp8Format::e4m3>() : f.template operator()<Fp8Format::e5m2>();
}

/// fp8 nearest to x, ties to even; saturates at the largest value. x is not NaN.
template <Fp8Format f> TG_HD_INLINE uint8_t fp8_of(float x) {
  using F = Fp8<f>;
  constexpr int kDrop = 23 - F::kFraction, kLeast = 1 - F::kBias;  // least normal exponent
  const uint32_t sign = math::detail::bits_of(x) >> 24 & 0x80u;
  float size = math::detail::abs(x);
  size = math::detail::select(size < F::kLargest, size, F::kLargest);
  const uint32_t u = math::detail::bits_of(size);
  // Subnormal: adding a power of two leaves the rounded fraction in the low bits.
  constexpr uint32_t kMagic = uint32_t(kLeast - F::kFraction + 23 + 127) << 23;
  const uint32_t small = math::detail::bits_of(size + math::detail::float_of(kMagic)) - kMagic;
  const uint32_t rounded = u + ((1u << (kDrop - 1)) - 1u) + (u >> kDrop & 1u);
  const uint32_t normal = (rounded >> kDrop) - (uint32_t(127 - F::kBias) << F::kFraction);
  const bool is_normal = u >= uint32_t(kLeast + 127) << 23;
  return uint8_t(sign | (is_normal ? normal : small));
}
/// Value of an fp8 that is not NaN or infinite.
template <Fp8Format f> TG_HD_INLINE float value_of_fp8(uint8_t code) {
  using F = Fp8<f>;
  const uint32_t fraction = code & ((1u << F::kFraction) - 1u), exponent = (code & 0x7fu) >> F::kFraction;
  const float unit = math::detail::float_of(uint32_t(1 - F::kBias - F::kFraction + 127) << 23);
  const float small = float(fraction) * unit;
  const uint32_t normal = (exponent + uint32_t(127 - F::kBias)) << 23 | fraction << (23 - F::kFraction);
  const float size = exponent == 0 ? small : math::detail::float_of(normal);
  return (code & 0x80u) != 0 ? -size : size;
}
/// Scale of a row: 0 for a row of zeros, or of values below about 2^-140, which become zeros.
template <Fp8Format f> TG_HD_INLINE float fp8_scale(float absmax) { return absmax / Fp8<f>::kLargest; }
/// fp8 of x in a row of this scale.
template <Fp8Format f> TG_HD_INLINE uint8_t fp8_code_of(float x, float scale) {
  return scale > 0.0f ? fp8_of<f>(x / scale) : uint8_t(0);
}
/// An element of fp8_linear(): the dot product, scaled, plus the bias.
TG_HD_INLINE float scaled_fp8(float sum, float scale_x, float scale_weight, float bias) {
  return scaled_twice(sum, scale_x, scale_weight, bias);
}

}  // namespace tg
