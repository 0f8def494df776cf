// Checks that the infer() of many ops share. Each throws an Error that names the op, the values, the rule and the way
// out.
#pragma once
#include <tapegrad/core/op.h>

namespace tg::check {

// Arithmetic is done in f64, f32 and bf16; f16 is a storage type (load, cast, store).
void computes(std::string_view op, const Tensor& x);
// i32 and i64 too, for ops that need no fractions.
void number(std::string_view op, const Tensor& x);
void same_dtype(std::string_view op, const Tensor& a, const Tensor& b);
void ndim_at_least(std::string_view op, const Tensor& x, size_t n);
void index(std::string_view op, const Tensor& ids);

// The shape that all inputs broadcast to: aligned at the right, each size must be equal or 1.
Shape broadcast(std::string_view op, Inputs);

// A number that is to become an element of an integer dtype: whole, finite and in range. Floating dtypes take any.
void representable(std::string_view op, double x, DType);

}  // namespace tg::check
