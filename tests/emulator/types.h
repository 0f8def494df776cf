#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

#define SIMT_VECTOR(T, name)                                    \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };            \
  struct alignas(4 * sizeof(T)) name##4 { T x, y, z, w; };      \
  constexpr name##2 make_##name##2(T x, T y) { return {x, y}; } \
  constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIMT_VECTOR(float, float)
SIMT_VECTOR(int, int)
SIMT_VECTOR(unsigned, uint)
SIMT_VECTOR(signed char, char)
#undef SIMT_VECTOR

struct __nv_bfloat16 {
  std::uint16_t bits;
  __nv_bfloat16() = default;
  explicit constexpr __nv_bfloat16(float f) : bits(round(f)) {}
  explicit constexpr operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

 private:
  static constexpr std::uint16_t round(float f) {
    const auto u = std::bit_cast<std::uint32_t>(f);
    if ((u & 0x7fffffffU) > 0x7f800000U) return 0x7fff;
    return static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
constexpr __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
constexpr float __bfloat162float(__nv_bfloat16 b) { return static_cast<float>(b); }
constexpr __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
