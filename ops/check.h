/// @file
/// Checks that the infer() of many ops share. Each throws an Error that names the op, the values, the rule and the way
/// out.
#pragma once
#include <tapegrad/core/op.h>

namespace tg::check {

/// Arithmetic is done in f64, f32 and bf16; f16 is a storage type (load, cast, store).
inline void computes(std::string_view op, const Tensor& x) {
  TG_CHECK(is_float(x.dtype()) && x.dtype() != DType::f16, dtype,
           "[{}] cannot compute on {}. Use f64, f32 or bf16: .to(DType::f32).", op, x);
}
/// i32 and i64 too, for ops that need no fractions.
inline void number(std::string_view op, const Tensor& x) {
  if (!is_index(x.dtype())) computes(op, x);
}
inline void same_dtype(std::string_view op, const Tensor& a, const Tensor& b) {
  TG_CHECK(a.dtype() == b.dtype(), dtype, "[{}] dtypes differ: {} and {}. There is no promotion; use .to(dtype).", op,
           a, b);
}
inline void ndim_at_least(std::string_view op, const Tensor& x, size_t n) {
  TG_CHECK(x.ndim() >= n, shape, "[{}] needs {} dimension(s) or more, got {}. Add sizes of 1 with reshape().", op, n,
           x);
}
inline void index(std::string_view op, const Tensor& ids) {
  TG_CHECK(is_index(ids.dtype()), dtype, "[{}] indices must be i32 or i64, got {}. Use .to(DType::i64).", op, ids);
}

/// The shape that all inputs broadcast to: aligned at the right, each size must be equal or 1.
Shape broadcast(std::string_view op, Inputs);

/// A number that is to become an element of an integer dtype: whole, finite and in range. Floating dtypes take any.
void representable(std::string_view op, double x, DType);

}  // namespace tg::check
