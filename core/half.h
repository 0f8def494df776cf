/// @file
/// The two 16-bit floating types. Conversions to f16 and bf16 round to nearest even; every NaN becomes 0x7fff, as by
/// GPU instructions. They have no arithmetic: kernels compute in compute_t<T>. Run-time compilers read this header too
/// (cuda/jit/chain_kernel.h), so it includes only cstdint. Other code includes dtype.h.
#pragma once
#include <cstdint>

namespace tg {

/// bfloat16: the upper half of an f32 (8 bits of exponent, 7 of fraction).
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  constexpr explicit bf16(float x) {
    const uint32_t u = __builtin_bit_cast(uint32_t, x);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? uint16_t(0x7fff) : uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
  constexpr operator float() const { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
};
/// IEEE binary16 (5 bits of exponent, 10 of fraction), with subnormal numbers.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  constexpr explicit f16(float x) {
    const uint32_t u = __builtin_bit_cast(uint32_t, x), sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) {
      bits = 0x7fff;
    } else if (mag >= 0x477ff000u) {  // rounds to >= 65 536
      bits = uint16_t(sign | 0x7c00u);
    } else if (mag < 0x38800000u) {  // subnormal: + 0.5 rounds into the low bits
      bits = uint16_t(sign | (__builtin_bit_cast(uint32_t, __builtin_bit_cast(float, mag) + 0.5f) - 0x3f000000u));
    } else {
      bits = uint16_t(sign | ((mag - 0x38000000u + 0xfffu + (mag >> 13 & 1u)) >> 13));
    }
  }
  constexpr operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16, e = bits >> 10 & 31u, m = bits & 0x3ffu;
    if (e == 31) return __builtin_bit_cast(float, sign | 0x7f800000u | m << 13);
    if (e == 0) {
      const float x = float(m) * 0x1p-24f;
      return sign ? -x : x;
    }
    return __builtin_bit_cast(float, sign | (e + 112u) << 23 | m << 13);
  }
};

/// Type that kernels compute in for T.
template <class T> struct ComputeOf {
  using type = T;
};
/// @cond
template <> struct ComputeOf<f16> {
  using type = float;
};
template <> struct ComputeOf<bf16> {
  using type = float;
};
/// @endcond
/// The type that kernels compute in for T: float for f16 and bf16, T for all others.
template <class T> using compute_t = typename ComputeOf<T>::type;

}  // namespace tg
