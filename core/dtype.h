// Element types: the DType enum, the two 16-bit floating types, and visit_dtype, which turns a run-time dtype into a
// template argument. Conversions to f16 and bf16 round to nearest even. No arithmetic on 16-bit types: kernels compute
// in compute_t<T> and store T.
#pragma once
#include <tapegrad/core/error.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tg {

enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, i8, u16, u8, boolean };
inline constexpr int kDTypes = 10;

// bfloat16: the upper half of an f32 (8 exponent bits, 7 of fraction).
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  constexpr explicit bf16(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? uint16_t(u >> 16 | 0x40u) : uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
  constexpr operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};
// IEEE binary16 (5 exponent bits, 10 of fraction), subnormals included.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  constexpr explicit f16(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x), sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) {
      bits = uint16_t(sign | 0x7e00u);
    } else if (mag >= 0x477ff000u) {  // rounds to 65 536 or more
      bits = uint16_t(sign | 0x7c00u);
    } else if (mag < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded fraction in the low bits
      bits = uint16_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(mag) + 0.5f) - 0x3f000000u));
    } else {
      bits = uint16_t(sign | ((mag - 0x38000000u + 0xfffu + (mag >> 13 & 1u)) >> 13));
    }
  }
  constexpr operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16, e = bits >> 10 & 31u, m = bits & 0x3ffu;
    if (e == 31) return std::bit_cast<float>(sign | 0x7f800000u | m << 13);
    if (e == 0) {
      const float x = float(m) * 0x1p-24f;
      return sign ? -x : x;
    }
    return std::bit_cast<float>(sign | (e + 112u) << 23 | m << 13);
  }
};

template <DType D> struct TypeOf;
template <> struct TypeOf<DType::f64> {
  using type = double;
};
template <> struct TypeOf<DType::f32> {
  using type = float;
};
template <> struct TypeOf<DType::f16> {
  using type = f16;
};
template <> struct TypeOf<DType::bf16> {
  using type = bf16;
};
template <> struct TypeOf<DType::i64> {
  using type = int64_t;
};
template <> struct TypeOf<DType::i32> {
  using type = int32_t;
};
template <> struct TypeOf<DType::i8> {
  using type = int8_t;
};
template <> struct TypeOf<DType::u16> {
  using type = uint16_t;
};
template <> struct TypeOf<DType::u8> {
  using type = uint8_t;
};
template <> struct TypeOf<DType::boolean> {
  using type = bool;
};

template <class T> constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, f16>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, bf16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, int8_t>)
    return DType::i8;
  else if constexpr (std::is_same_v<T, uint16_t>)
    return DType::u16;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return DType::u8;
  else {
    static_assert(std::is_same_v<T, bool>, "not an element type of tensors");
    return DType::boolean;
  }
}

// What a kernel computes in when it reads T: 16-bit floats in f32, the rest in itself.
template <class T> struct ComputeOf {
  using type = T;
};
template <> struct ComputeOf<f16> {
  using type = float;
};
template <> struct ComputeOf<bf16> {
  using type = float;
};
template <class T> using compute_t = typename ComputeOf<T>::type;

// f.template operator()<T>() with the C++ type of d.
template <class F> decltype(auto) visit_dtype(DType d, F&& f) {
  switch (d) {
    case DType::f64: return f.template operator()<double>();
    case DType::f32: return f.template operator()<float>();
    case DType::f16: return f.template operator()<f16>();
    case DType::bf16: return f.template operator()<bf16>();
    case DType::i64: return f.template operator()<int64_t>();
    case DType::i32: return f.template operator()<int32_t>();
    case DType::i8: return f.template operator()<int8_t>();
    case DType::u16: return f.template operator()<uint16_t>();
    case DType::u8: return f.template operator()<uint8_t>();
    case DType::boolean: break;
  }
  return f.template operator()<bool>();
}

constexpr bool is_float(DType d) { return d <= DType::bf16; }
constexpr bool is_index(DType d) { return d == DType::i32 || d == DType::i64; }

// The same for the dtypes that ops compute in: f64, f32, bf16.
template <class F> void visit_float(DType d, F&& f) {
  if (d == DType::f64)
    f.template operator()<double>();
  else if (d == DType::f32)
    f.template operator()<float>();
  else
    f.template operator()<bf16>();
}
// For the dtypes of indices: i64, i32.
template <class F> void visit_index(DType d, F&& f) {
  if (d == DType::i64)
    f.template operator()<int64_t>();
  else
    f.template operator()<int32_t>();
}
// For all that arithmetic is defined for: both.
template <class F> void visit_number(DType d, F&& f) { is_index(d) ? visit_index(d, f) : visit_float(d, f); }

size_t size_of(DType);                         // bytes of one element
std::string_view name_of(DType);               // "f32", "bool" ...
DType dtype_from_name(std::string_view name);  // an Error lists the names

}  // namespace tg

template <> struct fmt::formatter<tg::DType> : tg::PlainFormatter {
  template <class C> auto format(tg::DType d, C& c) const { return write(tg::name_of(d), c); }
};
