/// @file
/// The cross-entropy of a linear head without its logits: linear_cross_entropy().
#pragma once
#include <tapegrad/core/mode.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/quantized/block_linear.h>

#include <optional>

namespace tg {

/// Options of linear_cross_entropy().
struct LinearCrossEntropyOptions {
  CrossEntropyOptions loss = {};
  /// Rows whose logits are in memory at a time. 0: those of 64 MiB, but at least 256.
  int64_t rows = 0;
  void key(StructuralHash& k) const { loss.key(k), k.add(rows); }
};

namespace op {

/// (x (..., in), weight (V, in) or its blocks, targets (...)) -> (loss, log-sum-exp of each row; 0 for ignored rows),
/// and what backward is to find, for row losses' gradients of 1: the gradient of x, f32 or f64, and that of the logits
/// (rows, V), in x's dtype, of the rows that are not ignored, then zeros.
struct LinearCrossEntropy : OpOf<LinearCrossEntropy> {
  static constexpr auto kName = "linear_cross_entropy";
  LinearCrossEntropyOptions o;
  MatmulPrecision precision;
  bool keeps_dx, keeps_dlogits;
  std::optional<BlockFormat> format;
  LinearCrossEntropy(LinearCrossEntropyOptions opt, MatmulPrecision p, bool dx, bool dlogits,
                     std::optional<BlockFormat> f = {})
      : o(opt), precision(p), keeps_dx(dx), keeps_dlogits(dlogits), format(f) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(0, 1, 2); }
  Mask saves_out(Mask) const override { return mask_of(1, 2, 3) & ((4u << (keeps_dx + keeps_dlogits)) - 1); }
  Tensors vjp(const Vjp&) const override;
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override {
    o.key(k), k.add(int(precision)), k.add(keeps_dx), k.add(keeps_dlogits), k.add(format ? int(*format) : -1);
  }
  double multiply_adds(Bufs in, Bufs out) const override;
  int64_t rows_at_a_time(Bufs in) const;
  int64_t scratch_bytes(Bufs in, Bufs out) const override;
};
/// (x, weight, targets, log-sum-exp, dloss[, the logits' gradient that the forward kept]) -> dweight.
struct LinearCrossEntropyGrad : OpOf<LinearCrossEntropyGrad> {
  static constexpr auto kName = "linear_cross_entropy_grad";
  LinearCrossEntropyOptions o;
  MatmulPrecision precision;
  LinearCrossEntropyGrad(LinearCrossEntropyOptions opt, MatmulPrecision p) : o(opt), precision(p) {}
  Layouts infer(Inputs in) const override { return {contiguous_like(in[1])}; }
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override { o.key(k), k.add(int(precision)); }
  double multiply_adds(Bufs in, Bufs out) const override;
  int64_t classes_at_a_time(Bufs in) const;
  int64_t scratch_bytes(Bufs in, Bufs out) const override;
};
}  // namespace op

/// cross_entropy(linear(x, weight), targets), with the logits of some rows or classes in memory at a time. x (..., in)
/// and weight (V, in) have one dtype, f64, f32 or bf16, whose logits are f32: they are not rounded before the loss.
/// targets (...), options, result and Errors are those of cross_entropy(). In f32 the loss has its bits, for any number
/// of rows at a time. On a CPU, ignored rows take no work; CUDA devices run cross_entropy() and linear().
///
/// The forward also computes the gradient of x, in f32 or f64. If the weight needs one, the logits' gradient is kept
/// for it, in x's dtype, but in a RecomputeScope backward computes it again, with the same bits. Otherwise nothing of
/// the logits' size is kept. Second derivatives go through cross_entropy() and linear().
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            LinearCrossEntropyOptions = {});
/// Over blocks: equal to that over the dequantized weight. A weight of several parts has its logits in memory.
Tensor linear_cross_entropy(const Tensor& x, const BlockWeight& weight, const Tensor& targets,
                            LinearCrossEntropyOptions = {});

}  // namespace tg
