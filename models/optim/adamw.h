/// @file
/// AdamW: the optimisers Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019): their state, and which
/// parameters decay. The arithmetic is adamw_step() of ops/optim_step.h; the learning rate over time is in schedule.h.
/// The trainer uses it.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/nn/params.h>
#include <tapegrad/ops/optim_step.h>

namespace tg {

/// The settings of an AdamW.
struct AdamWConfig {
  double lr = 3e-4;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  ///< of parameters with two or more dimensions; biases and norms do not decay
  bool decay_all = false;      ///< whether biases and norms decay as well
  WeightDecay decay = WeightDecay::before;
  EpsPlacement eps_placement = EpsPlacement::corrected;

  /// Adam without weight decay.
  static AdamWConfig adam(double lr = 1e-3) { return {.lr = lr, .weight_decay = 0, .decay = WeightDecay::l2}; }
  /// Throws an Error that names the first wrong field.
  void validate() const;
  bool operator==(const AdamWConfig&) const = default;
};

/// Options of AdamW::step().
struct StepOptions {
  double clip_norm = 0;  ///< gradients are scaled so that their common norm is at most this; 0 means no clipping
  /// global_norm() of all gradients, for a caller that has it. If empty, it is computed only to clip by it.
  Tensor norm = {};
};

/// An optimiser with its state: two moments per parameter and the number of steps.
class AdamW {
 public:
  /// The parameters require gradients (Params::trainable()), are f32 or f64, and are on one device. Both moments start
  /// at 0, in the parameter's dtype.
  explicit AdamW(std::vector<Parameter>, AdamWConfig = {});

  /// Updates all parameters in place, by one op; the host does not wait. Returns the norm of all gradients before
  /// clipping, as global_norm() makes it; without clipping it is empty unless the caller passed it. An Error names the
  /// first parameter without a gradient; nothing has changed then.
  Tensor step(const GradMap&, StepOptions = {});
  /// Sets the learning rate of later steps, also of steps inside compiled functions, as schedules need it. Finite and
  /// at least 0.
  void set_lr(double);
  /// The learning rate of the next step.
  double lr() const { return count_->lr; }
  /// The number of steps done.
  int64_t steps() const { return count_->t; }
  const AdamWConfig& config() const { return config_; }  ///< as it was given; lr() is the current rate

  /// The moments now, for checkpoints: "<name>.m" and "<name>.v".
  StateDict state() const;
  /// Restores a state() that was taken after `steps` steps. All or nothing: an Error names the first tensor that is
  /// missing, unknown or of another shape.
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
