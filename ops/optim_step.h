/// @file
/// What an optimiser does to tensors: the norm of all gradients, and one step of Adam (Kingma & Ba 2015) or AdamW
/// (Loshchilov & Hutter 2019), of all tensors in a single pass. No groups, schedules or state here; users:
/// models/optim.
#pragma once
#include <tapegrad/core/op.h>

#include <span>
#include <vector>

namespace tg {
namespace op {

/// any number of inputs
struct GlobalNorm : OpOf<GlobalNorm> {
  static constexpr auto kName = "global_norm";
  Layouts infer(Inputs) const override;
};
}  // namespace op

enum class WeightDecay {
  before,  ///< w *= 1 - lr weight_decay, then the step: AdamW as its authors and PyTorch have it
  after,   ///< the step, then w *= 1 - lr weight_decay
  l2       ///< weight_decay w is added to the gradient: Adam with a penalty on the squares
};
enum class EpsPlacement {
  corrected,   ///< m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps): algorithm 1 of the paper on Adam, and PyTorch
  uncorrected  ///< sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps): the form at the end of that paper's section 2
};
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  WeightDecay decay = WeightDecay::before;
  EpsPlacement eps_placement = EpsPlacement::corrected;
};
/// The rate and the number of the last step, where an optimiser keeps them: a replay of a compiled function reads the
/// one and counts on with the other.
struct OptimizerClock : Counted<OptimizerClock> {
  double lr;
  int64_t t;
  OptimizerClock(double rate, int64_t steps) : lr(rate), t(steps) {}
};
namespace op {

/// Of n tensors: (w_0 ... w_n-1, m_0 ..., v_0 ..., grad_0 ...[, norm]) -> (w_0 ..., m_0 ..., v_0 ...). The rate and the
/// step's number change every step: not in the key.
struct AdamWStep : OpOf<AdamWStep> {
  static constexpr auto kName = "adamw_step";
  AdamWOptions o;
  std::vector<double> weight_decay;  ///< of each tensor; that of o has no part
  double lr, max_norm;
  int64_t t;
  Ref<OptimizerClock> count;  ///< may be empty
  AdamWStep(const AdamWOptions& opt, std::vector<double> decays, double rate, int64_t step, double most,
            Ref<OptimizerClock> c)
      : o(opt), weight_decay(std::move(decays)), lr(rate), max_norm(most), t(step), count(std::move(c)) {}
  OpPtr for_next_step(const Rng&) const override;
  size_t tensors() const { return weight_decay.size(); }
  Traits traits() const override { return {.updates_in_place = true, .dynamic_attributes = true}; }
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override {
    k.add(o.beta1), k.add(o.beta2), k.add(o.eps), k.add(max_norm), k.add(int(o.decay)), k.add(int(o.eps_placement));
    for (const double d : weight_decay) k.add(d);
  }
};
}  // namespace op

/// The square root of the sum of squares over all tensors, at least one, of any shapes and of dtypes f64, f32, bf16:
/// 0-d f32, summed in f64. No gradient.
Tensor global_norm(Inputs grads);
inline Tensor global_norm(std::initializer_list<Tensor> grads) {
  return global_norm(Inputs(grads.begin(), grads.size()));
}

/// What a step updates and reads: lists of one length, in one order.
struct AdamWTensors {
  Inputs w, m, v, grad;
  std::span<const double> weight_decay = {};  ///< of each tensor; empty: that of the options, for all
};
/// The step with number t, from 1, of every tensor, with g = grad, by default:
///   w *= 1 - lr weight_decay;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   w -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// WeightDecay and EpsPlacement say what the other forms do; with weight_decay 0 all three decays are one.
/// w, m and v take their new values, in place where nobody else reads the old ones. The four of a tensor have one shape
/// and dtype (f64 or f32), other tensors may have others; all lie on one device. When norm, 0-d f32, is given,
/// g = grad min(1, max_norm / (norm + 1e-6)): read by the kernel, so the host need not wait for it. One op, not
/// recorded; an Error, with nothing changed, when a w, m or v was computed on the tape or comes twice, or a number is
/// out of range.
/// Within a compiled function, `count` says what rate and number the next runs have; without one it is an Error there.
void adamw_step(const AdamWTensors&, const AdamWOptions&, double lr, int64_t t, const Tensor& norm = {},
                double max_norm = 0, Ref<OptimizerClock> count = {});
/// Of a single tensor.
inline void adamw_step(const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& grad, const AdamWOptions& o,
                       double lr, int64_t t, const Tensor& norm = {}, double max_norm = 0) {
  adamw_step({.w = {&w, 1}, .m = {&m, 1}, .v = {&v, 1}, .grad = {&grad, 1}}, o, lr, t, norm, max_norm);
}

}  // namespace tg
