/// @file
/// What an optimiser does to tensors: the norm of all gradients, and one step of Adam (Kingma & Ba 2015) or AdamW
/// (Loshchilov & Hutter 2019) of all tensors in a single pass. Groups, schedules and state are in models/optim, which
/// uses it.
#pragma once
#include <tapegrad/core/op.h>

#include <span>
#include <vector>

namespace tg {
namespace op {

/// (any number of tensors) -> the norm of all together.
struct GlobalNorm : OpOf<GlobalNorm> {
  static constexpr auto kName = "global_norm";
  Layouts infer(Inputs) const override;
};
}  // namespace op

/// When and how weights decay.
enum class WeightDecay {
  before,  ///< w *= 1 - lr weight_decay, then the step: AdamW as in the paper and in PyTorch
  after,   ///< the step, then w *= 1 - lr weight_decay
  l2       ///< weight_decay w is added to the gradient: Adam with an L2 penalty
};
/// Where eps is added.
enum class EpsPlacement {
  corrected,   ///< m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps): algorithm 1 of Adam's paper, and PyTorch
  uncorrected  ///< sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps): the end of section 2 of Adam's paper
};
/// The numbers of an AdamW step that rarely change.
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  WeightDecay decay = WeightDecay::before;
  EpsPlacement eps_placement = EpsPlacement::corrected;
};
/// The learning rate and the number of the last step, shared by an optimiser and its ops. A replay of a compiled
/// function reads the rate and counts the step.
struct OptimizerClock : Counted<OptimizerClock> {
  double lr;
  int64_t t;
  OptimizerClock(double rate, int64_t steps) : lr(rate), t(steps) {}
};
namespace op {

/// For n tensors: (w_0 ... w_n-1, m_0 ..., v_0 ..., grad_0 ...[, norm]) -> (w_0 ..., m_0 ..., v_0 ...). The learning
/// rate and the step's number change every step, so the key leaves them out.
struct AdamWStep : OpOf<AdamWStep> {
  static constexpr auto kName = "adamw_step";
  AdamWOptions o;
  std::vector<double> weight_decay;  ///< of each tensor; that of o has no part
  double lr, max_norm;
  int64_t t;
  Ref<OptimizerClock> count;  ///< may be null
  AdamWStep(const AdamWOptions& opt, std::vector<double> decays, double rate, int64_t step, double most,
            Ref<OptimizerClock> c)
      : o(opt), weight_decay(std::move(decays)), lr(rate), max_norm(most), t(step), count(std::move(c)) {}
  OpPtr for_next_step(const Rng&) const override;
  void undo_step() const override {
    if (count) count->t = t - 1;
  }
  size_t tensors() const { return weight_decay.size(); }
  Traits traits() const override { return {.updates_in_place = true, .dynamic_attributes = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override {
    k.add(o.beta1), k.add(o.beta2), k.add(o.eps), k.add(max_norm), k.add(int(o.decay)), k.add(int(o.eps_placement));
    for (const double d : weight_decay) k.add(d);
  }
};
}  // namespace op

/// The square root of the sum of squares over all tensors: 0-d, summed in f64; its dtype is f64 if a tensor is f64,
/// else f32. At least one tensor; any shapes; f64, f32, bf16. No gradient.
/// @{
Tensor global_norm(Inputs grads);
inline Tensor global_norm(std::initializer_list<Tensor> grads) {
  return global_norm(Inputs(grads.begin(), grads.size()));
}
/// @}

/// What a step updates and reads: lists of one length, in one order.
struct AdamWTensors {
  Inputs w, m, v, grad;
  std::span<const double> weight_decay = {};  ///< of each tensor; empty means that of the options for all
};
/// Step number t, from 1, of every tensor. With g = grad, the default form is
/// @verbatim
/// w *= 1 - lr weight_decay;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
/// w -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// @endverbatim
/// WeightDecay and EpsPlacement describe the other forms; with weight_decay 0 all three decays are equal.
///
/// w, m and v get their new values, in place if nobody else reads the old ones. The four tensors of an entry have one
/// shape and dtype (f64 or f32), which may differ between entries; all are on one device. If norm (0-d f32 or f64) is
/// given, g = grad min(1, max_norm / (norm + 1e-6)). The kernel reads it, so the host does not wait.
///
/// It is one op, and not recorded. An Error, with nothing changed, if a w, m or v was computed on the tape or comes
/// twice, or if a number is out of range. A compiled function needs `count`, from which its replays take the learning
/// rate and the step number; without one it is an Error there.
void adamw_step(const AdamWTensors&, const AdamWOptions&, double lr, int64_t t, const Tensor& norm = {},
                double max_norm = 0, Ref<OptimizerClock> count = {});
/// The step of a single tensor.
inline void adamw_step(const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& grad, const AdamWOptions& o,
                       double lr, int64_t t, const Tensor& norm = {}, double max_norm = 0) {
  adamw_step({.w = {&w, 1}, .m = {&m, 1}, .v = {&v, 1}, .grad = {&grad, 1}}, o, lr, t, norm, max_norm);
}

}  // namespace tg
