/// @file
/// Checks that the infer() of many ops share. Each throws an Error that names the op, the values, the rule and the way
/// out. Authors of ops use them.
#pragma once
#include <tapegrad/core/op.h>

namespace tg::check {

/// x has a dtype that ops compute in: f64, f32 or bf16. f16 is for storage only (load, cast, store).
inline void computes(std::string_view op, const Tensor& x) {
  TG_CHECK(is_float(x.dtype()) && x.dtype() != DType::f16, dtype,
           "[{}] cannot compute on {}. Use f64, f32 or bf16: .to(DType::f32).", op, x);
}
/// x has a dtype that arithmetic is defined for: f64, f32, bf16, i64 or i32.
inline void number(std::string_view op, const Tensor& x) {
  if (!is_index(x.dtype())) computes(op, x);
}
/// a and b have the same dtype; there is no promotion.
inline void same_dtype(std::string_view op, const Tensor& a, const Tensor& b) {
  TG_CHECK(a.dtype() == b.dtype(), dtype, "[{}] dtypes differ: {} and {}. There is no promotion; use .to(dtype).", op,
           a, b);
}
/// x has n dimensions or more.
inline void ndim_at_least(std::string_view op, const Tensor& x, size_t n) {
  TG_CHECK(x.ndim() >= n, shape, "[{}] needs {} dimension(s) or more, got {}. Add sizes of 1 with reshape().", op, n,
           x);
}
/// ids has a dtype of indices: i32 or i64.
inline void index(std::string_view op, const Tensor& ids) {
  TG_CHECK(is_index(ids.dtype()), dtype, "[{}] indices must be i32 or i64, got {}. Use .to(DType::i64).", op, ids);
}

/// The shape that all inputs broadcast to: aligned at the right, each size must be equal or 1.
Shape broadcast(std::string_view op, Inputs);

/// The number x can become an element of the dtype. For an integer dtype it must be whole, finite and in range; a
/// floating dtype takes any.
void representable(std::string_view op, double x, DType);

}  // namespace tg::check
