/// @file
/// Element types: the DType enum, and visit_dtype(), which turns a run-time dtype into a template argument. The 16-bit
/// floating types and the types that kernels compute in are in half.h. Everybody uses it.
#pragma once
#include <tapegrad/core/error.h>
#include <tapegrad/core/half.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tg {

/// The element types of tensors. Ops compute in f64, f32 and bf16, some in i64 and i32; the others are for storage.
enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, i8, u16, u8, boolean };
/// The number of dtypes.
inline constexpr int kDTypes = 10;

/// The C++ type of a dtype, as TypeOf<D>::type.
template <DType D> struct TypeOf;
/// @cond
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
/// @endcond

/// The dtype of a C++ type. Any other type does not compile.
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

/// Calls `f.template operator()<T>()` with T the C++ type of d, and returns its result.
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

/// Whether d is f64, f32, f16 or bf16.
constexpr bool is_float(DType d) { return d <= DType::bf16; }
/// Whether d is i64 or i32.
constexpr bool is_index(DType d) { return d == DType::i32 || d == DType::i64; }

/// Calls `f.template operator()<T>()` for a d that ops compute in: f64, f32 or bf16. The caller has checked d
/// (ops/check.h): any other dtype is taken for bf16.
template <class F> void visit_float(DType d, F&& f) {
  if (d == DType::f64)
    f.template operator()<double>();
  else if (d == DType::f32)
    f.template operator()<float>();
  else
    f.template operator()<bf16>();
}
/// Calls `f.template operator()<T>()` for a d that indices have: i64 or i32. The caller has checked d (ops/check.h):
/// any other dtype is taken for i32.
template <class F> void visit_index(DType d, F&& f) {
  if (d == DType::i64)
    f.template operator()<int64_t>();
  else
    f.template operator()<int32_t>();
}
/// Calls `f.template operator()<T>()` for a d that arithmetic is defined for: i64, i32, f64, f32 or bf16. The caller
/// has checked d: any other dtype is taken for bf16.
template <class F> void visit_number(DType d, F&& f) { is_index(d) ? visit_index(d, f) : visit_float(d, f); }

/// Bytes of one element.
size_t size_of(DType);
/// The name of a dtype: "f32", "bool".
std::string_view name_of(DType);
/// The dtype of a name that name_of() returns; an Error lists the names.
DType dtype_from_name(std::string_view name);

}  // namespace tg

/// @cond
template <> struct fmt::formatter<tg::DType> : tg::PlainFormatter {
  template <class C> auto format(tg::DType d, C& c) const { return write(tg::name_of(d), c); }
};
/// @endcond
