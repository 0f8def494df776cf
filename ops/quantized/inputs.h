/// @file
/// Dtypes of the ops on 8-bit values. For their sources and kernels.
#pragma once
#include <tapegrad/core/tensor.h>

namespace tg::detail {

/// True if values of d can be quantized and dequantized: f32, bf16 and f16.
constexpr bool is_quantizable(DType d) { return d == DType::f32 || d == DType::bf16 || d == DType::f16; }
/// An Error unless x's dtype is quantizable.
void check_quantizable(std::string_view op, const Tensor& x);
/// An Error unless dequantization can give d.
void check_dequantized(std::string_view op, DType d);
/// Calls `f.template operator()<T>()` for a quantizable d; f16 for any other, unchecked.
template <class F> void visit_quantizable(DType d, F&& f) { kernel::visit_among<float, bf16, f16>(d, f); }

}  // namespace tg::detail
