/// @file
/// Softmax and its logarithm over one dimension. loss.h and attention.h use it for second derivatives.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// Softmax or LogSoftmax.
template <bool kLog> struct SoftmaxOf : OpOf<SoftmaxOf<kLog>> {
  static constexpr auto kName = kLog ? "log_softmax" : "softmax";
  Traits traits() const override { return {.may_alias = mask_of(0)}; }
  Layouts infer(Inputs) const override;
  Mask saves_out(Mask) const override { return mask_of(0); }
  Tensors vjp(const Vjp&) const override;
};
/// SoftmaxGrad or LogSoftmaxGrad.
template <bool kLog> struct SoftmaxGradOf : OpOf<SoftmaxGradOf<kLog>> {
  static constexpr auto kName = kLog ? "log_softmax_grad" : "softmax_grad";
  Traits traits() const override { return {.may_alias = mask_of(0, 1)}; }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Tensors compose(Inputs) const override;
};
/// (x) -> softmax over the last dimension.
using Softmax = SoftmaxOf<false>;
/// (x) -> log_softmax over the last dimension.
using LogSoftmax = SoftmaxOf<true>;
/// (y, dy) -> y * (dy - sum(dy * y)).
using SoftmaxGrad = SoftmaxGradOf<false>;
/// (y, dy) -> dy - exp(y) * sum(dy).
using LogSoftmaxGrad = SoftmaxGradOf<true>;
}  // namespace op

/// exp(x - max) / sum(exp(x - max)) along `dim`, in x's shape and dtype: f64, f32, or bf16 (computed in f32, on a GPU
/// with exponentials to 2^-16). Entries of -infinity become 0; a row of these alone is NaN.
Tensor softmax(const Tensor& x, int64_t dim = -1);
/// x - max - log(sum(exp(x - max))) along `dim`: shape, dtypes and accuracy of softmax(). Entries of -infinity stay; a
/// row of these alone is NaN.
Tensor log_softmax(const Tensor& x, int64_t dim = -1);

}  // namespace tg
