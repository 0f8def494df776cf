/// @file
/// Convolution along one dimension, composed of slices and products: on every backend, lazily and in compiled
/// functions.
#pragma once
#include <tapegrad/ops/composed.h>

namespace tg {

/// Options of conv1d().
struct Conv1dOptions {
  int64_t stride = 1;
  Padding padding = {};  ///< zeros before and after each row of x
  int64_t dilation = 1;  ///< distance in x of kernel elements
  int64_t groups = 1;    ///< parts of the channels; each reads its own
  bool causal = false;   ///< (K - 1) dilation more zeros before
};
/// y[n, o, t] = bias[o] + sum over c and k of weight[o, c, k] x[n, g C / groups + c, t stride + k dilation], with g the
/// group of o and x padded: cross-correlation, as in PyTorch. x (N, C, L), weight (O, C / groups, K), bias (O) or empty
/// give (N, O, (L + padding - (K - 1) dilation - 1) / stride + 1). Dtypes are equal: f64, f32, or bf16 (accumulated in
/// f32). Slices of x become one matrix product, K times as large as x, or, with one channel per group (depthwise), sums
/// of K products. Errors: other shapes; C or O that groups does not divide; a stride, dilation or number of groups
/// below 1; a padded row shorter than the kernel.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv1dOptions& = {});

}  // namespace tg
