/// @file
/// Losses for training. Cross-entropy has no second buffer of the logits' size; its gradient is one pass over the saved
/// log-sum-exps.
#pragma once
#include <tapegrad/core/op.h>

#include <optional>

namespace tg {

/// Reduction of losses of rows or elements.
enum class Reduction { mean, sum, none };
/// Options of cross_entropy().
struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  /// Rows with this target add nothing to the loss or the mean's divisor.
  std::optional<int64_t> ignore_index = std::nullopt;
  double label_smoothing = 0;  ///< share in [0, 1) spread evenly over all classes
  void key(StructuralHash& k) const {
    k.add(int(reduction)), k.add(ignore_index.has_value()), k.add(ignore_index.value_or(0)), k.add(label_smoothing);
  }
};

namespace op {

/// (logits, targets) -> (loss, log-sum-exp of each row; 0 for ignored rows).
struct CrossEntropy : OpOf<CrossEntropy> {
  static constexpr auto kName = "cross_entropy";
  CrossEntropyOptions o;
  explicit CrossEntropy(CrossEntropyOptions opt) : o(opt) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(0, 1); }
  Mask saves_out(Mask) const override { return mask_of(1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { o.key(k); }
};
/// (logits, targets, log-sum-exp, dloss) -> dlogits.
struct CrossEntropyGrad : OpOf<CrossEntropyGrad> {
  static constexpr auto kName = "cross_entropy_grad";
  CrossEntropyOptions o;
  explicit CrossEntropyGrad(CrossEntropyOptions opt) : o(opt) {}
  Traits traits() const override { return {.may_alias = mask_of(0)}; }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override { o.key(k); }
};
/// (x, target) -> loss. Its gradient consists of pointwise ops.
struct MseLoss : OpOf<MseLoss> {
  static constexpr auto kName = "mse_loss";
  Reduction reduction;
  explicit MseLoss(Reduction r) : reduction(r) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return mask_of(0, 1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(int(reduction)); }
};
}  // namespace op

/// Loss -log softmax(logits)[target] of each row of logits (..., V), f64, f32 or bf16, with targets (...), i32 or
/// i64, in [0, V). Label smoothing s gives (1 - s) times that, plus s times the mean of -log softmax over all V
/// (Szegedy et al., 2016). The result is 0-d for mean and sum, of the targets' shape for none; f64 for f64 logits, else
/// f32. GPUs compute the exponentials of bf16 logits to 2^-16.
///
/// When the op runs, a target outside [0, V) other than ignore_index is an Error, as is the mean of no rows. On a CUDA
/// device the loss of such a row is NaN; see indexing.h.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions = {});
/// (x - target)^2 of tensors with equal shapes (no broadcasting) and dtypes: f64, f32 or bf16. The result is 0-d for
/// mean and sum, of x's shape for none; f64 for f64 inputs, else f32. The mean of no elements is an Error.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction = Reduction::mean);
/// Binary cross-entropy -t log sigmoid(x) - (1 - t) log(1 - sigmoid(x)) of logits x and targets t, unchecked
/// probabilities. Computed as t softplus(-x) + (1 - t) softplus(x), which neither overflows nor cancels. Shapes,
/// dtypes, result and Errors are those of mse_loss().
Tensor bce_with_logits(const Tensor& logits, const Tensor& targets, Reduction = Reduction::mean);

/// |x - target|: shapes, dtypes, result and Errors are those of mse_loss(). The gradient is 0 where they are equal.
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction = Reduction::mean);
/// (x - target)^2 / 2 where |x - target| <= delta, else delta (|x - target| - delta / 2) (Huber, Robust estimation of a
/// location parameter, 1964). Shapes, dtypes, result and Errors are those of mse_loss(). An Error unless delta is
/// positive and finite.
Tensor huber_loss(const Tensor& x, const Tensor& target, double delta = 1, Reduction = Reduction::mean);

namespace kernel {
/// The Error of a target that is no class; `where`: its position in `targets`.
Error target_outside(int64_t target, const Dims& where, const Layout& targets, int64_t classes,
                     std::optional<int64_t> ignore_index);
/// The Error of a mean over no rows.
Error no_rows_left(int64_t targets, std::optional<int64_t> ignore_index);
}  // namespace kernel

}  // namespace tg
