/// @file
/// Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019): the state of the optimiser, and which parameters
/// decay. The arithmetic is adamw_step() of ops/optim_step.h, the learning rate over time is in schedule.h.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/nn/params.h>
#include <tapegrad/ops/optim_step.h>

namespace tg {

struct AdamWConfig {
  double lr = 3e-4;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  ///< of parameters with two dimensions or more; biases and norms get none
  bool decay_all = false;      ///< they do
  WeightDecay decay = WeightDecay::before;
  EpsPlacement eps_placement = EpsPlacement::corrected;

  static AdamWConfig adam(double lr = 1e-3) { return {.lr = lr, .weight_decay = 0, .decay = WeightDecay::l2}; }
  void validate() const;  ///< an Error names the field that is wrong
  bool operator==(const AdamWConfig&) const = default;
};

struct StepOptions {
  double clip_norm = 0;  ///< gradients are scaled so that the norm of all together is at most this; 0: they are not
  Tensor norm = {};      ///< global_norm() of all gradients, for a caller that has it; empty: it is computed
};

class AdamW {
 public:
  /// The parameters require gradients (Params::trainable()), are f32 or f64 and lie on one device. Both moments start
  /// at 0, of the same dtype.
  explicit AdamW(std::vector<Parameter>, AdamWConfig = {});

  /// One update of all parameters, in place, by one op. Returns the norm of all gradients together before clipping, a
  /// 0-d f32 tensor; nothing waits for it. An Error names the first parameter without a gradient, and nothing has
  /// changed then.
  Tensor step(const GradMap&, StepOptions = {});
  /// Of the steps from now on, those of compiled functions too: for schedules. Finite and 0 or more.
  void set_lr(double);
  double lr() const { return count_->lr; }
  int64_t steps() const { return count_->t; }
  const AdamWConfig& config() const { return config_; }  ///< with the rate that it was made with

  /// For checkpoints: "<name>.m" and "<name>.v", the values at this moment.
  StateDict state() const;
  /// Continues from such a state after `steps` steps. All or nothing: an Error names what is missing, unknown or of
  /// another shape.
  void load_state(const StateDict&, int64_t steps);

 private:
  std::vector<Tensor> gradients(const GradMap&) const;
  AdamWConfig config_;
  std::vector<std::string> names_;  // of the parameters; the lists below go by them
  std::vector<Tensor> w_, m_, v_;
  std::vector<double> weight_decay_;
  Ref<OptimizerClock> count_;
};

}  // namespace tg
