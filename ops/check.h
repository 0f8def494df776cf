/// @file
/// Checks for the infer() of ops. Errors name the op, the values, the rule and the way out.
#pragma once
#include <tapegrad/core/op.h>

namespace tg::check {

/// f64, f32 or bf16. f16 is for storage (load, cast, store).
void computes(std::string_view op, const Tensor& x);
/// f64, f32, bf16, i64 or i32.
void number(std::string_view op, const Tensor& x);
/// Equal dtypes; there is no promotion.
void same_dtype(std::string_view op, const Tensor& a, const Tensor& b);
/// x has n dimensions or more.
void ndim_at_least(std::string_view op, const Tensor& x, size_t n);
/// `dim` from 0; negative ones count from the end. x has a value.
size_t dim(std::string_view op, const Tensor& x, int64_t dim);
/// ids are i32 or i64.
void index(std::string_view op, const Tensor& ids);

/// (..., out): x (..., in) times a transposed weight (out, in), plus a bias (out) unless null.
Shape linear(std::string_view op, const Tensor& x, const Tensor& weight, const Tensor* bias);

/// Shape that all inputs broadcast to: right-aligned, each size equal or 1.
Shape broadcast(std::string_view op, Inputs);

/// The dtype has the value x: for integers whole, finite and in range; floating dtypes take any.
void representable(std::string_view op, double x, DType);

}  // namespace tg::check
