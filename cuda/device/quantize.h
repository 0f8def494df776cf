// `ops/quantized/codes.h` bit for bit, without divisions.
#pragma once
#include <tapegrad/cuda/device/index_check.h>
#include <tapegrad/ops/quantized/codes.h>
#include <tapegrad/ops/quantized/quantize.h>

namespace tg::cuda {
namespace {
__device__ __forceinline__ uint32_t magnitude(float x) { return magnitude_bits(x); }
template <class T> __device__ __forceinline__ uint32_t magnitude(T x) { return x.bits & 0x7fffu; }
template <class T> __device__ __forceinline__ uint32_t as_f32(uint32_t m) {
  if constexpr (std::is_same_v<T, float>) return m;
  if constexpr (std::is_same_v<T, bf16>) return m << 16;
  f16 x;
  x.bits = uint16_t(m);
  return math::detail::bits_of(to_float(x));
}
template <class T> __device__ __forceinline__ float value(T x) {
  if constexpr (std::is_same_v<T, f16>)
    return to_float(x);
  else
    return widen(x);
}
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// x / y rounded to nearest, r = 1 / y, in the normal range. Tested for all quotients of the quantizers.
__device__ __forceinline__ float quotient(float x, float y, float r) {
  const float q = x * r;
  return math::detail::fma(math::detail::fma(-q, y, x), r, q);
}
// code_of() without its division, which would be slower than memory.
class Int8Quantizer {
 public:
  using Value = int8_t;
  // Scales magnitudes far from 1 by exact powers of 2.
  __device__ __forceinline__ explicit Int8Quantizer(uint32_t absmax) {
    const float a = math::detail::float_of(absmax);
    scale_ = a < 0x1p-60f ? 0x1p80f : a > 0x1p60f ? 0x1p-80f : 1.0f;
    absmax_ = a > 0 ? a * scale_ : 1.0f;
    inverse_ = reciprocal(absmax_);
  }
  __device__ __forceinline__ int8_t operator()(float x) const {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds, ties to even
    const float q = quotient(x * scale_, absmax_, inverse_);
    return int8_t(math::detail::bits_of(sum_rn(127.0f * q, kMagic)));
  }

 private:
  float scale_, absmax_, inverse_;
};
__device__ __forceinline__ bool usual(float absmax) {
  return math::abs(absmax) > 0x1p-80f && math::abs(absmax) < 0x1p100f;
}
__device__ __forceinline__ float usual_value(int8_t code, float absmax) {
  return quotient(absmax * float(code), 127.0f, 1.0f / 127.0f);
}

// Keys of bad elements: those too large for an f16 state sort last.
constexpr int64_t kTooLarge = int64_t(1) << 39;
Error not_quantized(const IndexSite& s, int64_t position, int64_t value) {
  return tg::detail::not_quantized(s.op, s.index, position % kTooLarge, math::detail::float_of(uint32_t(value)));
}
class NonFiniteCheck {
 public:
  NonFiniteCheck(const Context& c, const Buf& x, DType state)
      : check_(c, {not_quantized, c.op, *x.layout}), least_(state == DType::f16 ? 0x477ff000u : kNotFinite) {}
  __device__ __forceinline__ bool bad(uint32_t absmax) const { return absmax >= least_; }
  template <class T> __device__ __forceinline__ void operator()(T x, int64_t position) const {
    const uint32_t m = as_f32<T>(magnitude(x));
    if (!bad(m)) return;
    check_.note(int64_t(math::detail::bits_of(value(x))), m >= kNotFinite ? position : position + kTooLarge);
  }

 private:
  IndexCheck check_;
  uint32_t least_;  // 0x477ff000 is 65520, which f16 rounds to infinity
};
struct ScaleOutput {
  void* p;
  bool narrow;
  ScaleOutput(const Buf& b) : p(first_element(b)), narrow(b.dtype() == DType::f16) {}
  __device__ __forceinline__ void set(int64_t i, uint32_t absmax) const {
    if (narrow)
      static_cast<f16*>(p)[i] = f16(math::detail::float_of(absmax));
    else
      static_cast<uint32_t*>(p)[i] = absmax;
  }
};

}  // namespace
}  // namespace tg::cuda
