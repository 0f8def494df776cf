/// @file
/// Arithmetic of int8 values, one source for host and device. All backends give the same bits: the explicit fma alone
/// adds a product.
#pragma once
#include <tapegrad/core/math.h>

namespace tg {

/// Magnitudes order like their bits; infinity and NaN start here.
inline constexpr uint32_t kNotFinite = 0x7f800000u;
/// The bits of |x|.
TG_HD_INLINE uint32_t magnitude_bits(float x) { return math::detail::bits_of(x) & 0x7fffffffu; }

/// rint(127 (x / absmax)), at most 127 in size; absmax > 0.
TG_HD_INLINE float code_of(float x, float absmax) {
#ifdef __CUDA_ARCH__
  return rintf(127.0f * (x / absmax));
#else
  return __builtin_rintf(127.0f * (x / absmax));
#endif
}
/// Dequantizes. From 2^120 on, exact scaling by a power of 2 keeps the product finite.
TG_HD_INLINE float value_of(int8_t code, float absmax) {
  if (magnitude_bits(absmax) < 0x7b800000u) return absmax * float(code) / 127.0f;
  return absmax * 0x1p-8f * float(code) / 127.0f * 0x1p8f;
}
/// x scale_1 scale_2 + bias. scale_2 comes first where x scale_1 overflows f32.
TG_HD_INLINE float scaled_twice(float x, float scale_1, float scale_2, float bias) {
  const float y = scale_1 * x;
  return magnitude_bits(y) < kNotFinite ? math::detail::fma(scale_2, y, bias)
                                        : math::detail::fma(scale_1, scale_2 * x, bias);
}
/// An element of int8_linear(): the dot product, scaled, plus the bias.
TG_HD_INLINE float scaled(int32_t sum, float absmax_x, float absmax_weight, float bias) {
  return scaled_twice(float(sum) * (1.0f / 16129.0f), absmax_x, absmax_weight, bias);
}

}  // namespace tg
