/// @file
/// What the ops on 8-bit codes share: the dtypes that they read and write, and the codes of a weight. Their sources and
/// kernels use it.
#pragma once
#include <tapegrad/ops/quantized/quantize.h>
#include <tapegrad/ops/quantized/switchback.h>

namespace tg::detail {

/// Whether values of d are quantised, and made of codes: f32, bf16 and f16.
constexpr bool is_quantisable(DType d) { return d == DType::f32 || d == DType::bf16 || d == DType::f16; }
/// An Error unless x has such a dtype.
void check_quantisable(std::string_view op, const Tensor& x);
/// An Error unless codes can become d.
void check_dequantised(std::string_view op, DType d);
/// Calls `f.template operator()<T>()` for such a d. The caller has checked d: any other dtype is taken for f16.
template <class F> void visit_quantisable(DType d, F&& f) {
  if (d == DType::f32)
    f.template operator()<float>();
  else if (d == DType::bf16)
    f.template operator()<bf16>();
  else
    f.template operator()<f16>();
}
/// The shape without its last size: that of a number for each row.
inline Shape without_last(const Shape& s) { return Shape(s.begin(), s.end() - 1); }
/// The codes of a weight in a mode that is not of 8-bit floats.
Quantized quantize_weight(const Tensor& weight, SwitchBackMode);

}  // namespace tg::detail
