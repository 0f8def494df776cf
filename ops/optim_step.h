// What an optimiser does to tensors: the norm of all gradients, and one step of Adam (Kingma & Ba 2015) or AdamW
// (Loshchilov & Hutter 2019) in a single pass. No groups, schedules or state here; users: models/optim.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

struct GlobalNorm : OpOf<GlobalNorm> {  // any number of inputs
  static constexpr auto kName = "global_norm";
  Layouts infer(Inputs) const override;
};
enum class WeightDecay {
  before,  // w *= 1 - lr weight_decay, then the step: AdamW as its authors and PyTorch have it
  after,   // the step, then w *= 1 - lr weight_decay
  l2       // weight_decay w is added to the gradient: Adam with a penalty on the squares
};
enum class EpsPlacement {
  corrected,   // m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps): algorithm 1 of the paper on Adam, and PyTorch
  uncorrected  // sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps): the form at the end of that paper's section 2
};
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  WeightDecay decay = WeightDecay::before;
  EpsPlacement eps_placement = EpsPlacement::corrected;
};
// (w, m, v, grad[, norm]) -> (w, m, v). The rate and the step's number change every step: not in the key.
struct AdamWStep : OpOf<AdamWStep> {
  static constexpr auto kName = "adamw_step";
  AdamWOptions o;
  double lr, max_norm;
  int64_t t;
  AdamWStep(const AdamWOptions& opt, double rate, int64_t step, double most)
      : o(opt), lr(rate), max_norm(most), t(step) {}
  Traits traits() const override { return {.may_alias = bits(0, 1, 2)}; }
  Layouts infer(Inputs) const override;
  void key(Key& k) const override {
    k.add(o.beta1), k.add(o.beta2), k.add(o.eps), k.add(o.weight_decay), k.add(max_norm);
    k.add(int(o.decay)), k.add(int(o.eps_placement));
  }
};

// The square root of the sum of squares over all tensors, at least one, of any shapes and of dtypes f64, f32, bf16:
// 0-d f32, summed in f64. No gradient.
Tensor global_norm(Inputs grads);
inline Tensor global_norm(std::initializer_list<Tensor> grads) {
  return global_norm(Inputs(grads.begin(), grads.size()));
}

// The step with number t, from 1, with g = grad, by default:
//   w *= 1 - lr weight_decay;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// WeightDecay and EpsPlacement say what the other forms do; with weight_decay 0 all three decays are one.
// w, m and v take their new values, in place where nobody else reads the old ones; all four have one shape and dtype
// (f64 or f32). When norm, 0-d f32, is given, g = grad min(1, max_norm / (norm + 1e-6)): read by the kernel, so the
// host need not wait for it. Not recorded; an Error when w, m or v was computed on the tape, or a number is out of
// range.
void adamw_step(const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& grad, const AdamWOptions&, double lr,
                int64_t t, const Tensor& norm = {}, double max_norm = 0);

}  // namespace tg
