/// @file
/// Element types: the DType enum, and visit_dtype(), which makes a run-time dtype a template argument. half.h has the
/// 16-bit types and compute_t.
#pragma once
#include <tapegrad/core/error.h>
#include <tapegrad/core/half.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tg {

/// X(C++ type, dtype, name) for each dtype, in the order of DType.
#define TG_DTYPES(X)      \
  X(double, f64, "f64")   \
  X(float, f32, "f32")    \
  X(f16, f16, "f16")      \
  X(bf16, bf16, "bf16")   \
  X(int64_t, i64, "i64")  \
  X(int32_t, i32, "i32")  \
  X(int8_t, i8, "i8")     \
  X(uint16_t, u16, "u16") \
  X(uint8_t, u8, "u8")    \
  X(bool, boolean, "bool")

/// The element types of tensors. Ops compute in f64, f32 and bf16, some in i64 and i32. The others are storage types.
enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, i8, u16, u8, boolean };
/// Number of dtypes.
inline constexpr int kDTypes = 10;

namespace detail {
template <class T> struct DTypeOf;  // defined for element types only
#define TG_X(T, d, name) \
  template <> struct DTypeOf<T> : std::integral_constant<DType, DType::d> {};
TG_DTYPES(TG_X)
#undef TG_X
}  // namespace detail
/// Dtype of a C++ type; other types do not compile.
template <class T> constexpr DType dtype_of() { return detail::DTypeOf<T>::value; }

/// Calls `f.template operator()<T>()` with the C++ type T of d, and returns its result.
template <class F> decltype(auto) visit_dtype(DType d, F&& f) {
  switch (d) {
#define TG_X(T, d, name) \
  case DType::d: return f.template operator()<T>();
    TG_DTYPES(TG_X)
#undef TG_X
  }
  return f.template operator()<bool>();  // unreachable
}

/// Whether d is f64, f32, f16 or bf16.
constexpr bool is_float(DType d) { return d <= DType::bf16; }
/// Whether d is i64 or i32.
constexpr bool is_index(DType d) { return d == DType::i32 || d == DType::i64; }

/// Bytes of one element.
size_t size_of(DType);
/// The name of a dtype: "f32", "bool".
std::string_view name_of(DType);
namespace detail {
/// The dtype of a name that name_of() returns; an Error lists the names.
DType dtype_from_name(std::string_view name);
}  // namespace detail

namespace kernel {
/// Calls `f.template operator()<T>()` for d's T of the list, unchecked (ops/check.h): other dtypes count as the last.
template <class T, class... More, class F> void visit_among(DType d, F&& f) {
  if constexpr (sizeof...(More) > 0)
    if (d != dtype_of<T>()) return visit_among<More...>(d, f);
  f.template operator()<T>();
}
/// Among f64, f32, bf16; i64, i32; all five, bf16 last.
/// @{
template <class F> void visit_float(DType d, F&& f) { visit_among<double, float, bf16>(d, f); }
template <class F> void visit_index(DType d, F&& f) { visit_among<int64_t, int32_t>(d, f); }
template <class F> void visit_number(DType d, F&& f) { is_index(d) ? visit_index(d, f) : visit_float(d, f); }
/// @}
/// Calls `f.template operator()<U>()` for an unsigned integer U of the element size: kernels that move elements.
template <class F> void visit_size(DType d, F&& f) {
  switch (size_of(d)) {
    case 1: return f.template operator()<uint8_t>();
    case 2: return f.template operator()<uint16_t>();
    case 4: return f.template operator()<uint32_t>();
    default: return f.template operator()<uint64_t>();
  }
}
}  // namespace kernel

}  // namespace tg
