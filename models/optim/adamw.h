/// @file
/// AdamW: the optimisers Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019): their state, and which
/// parameters decay. The arithmetic is adamw_step() of ops/optim_step.h; the learning rate over time is in schedule.h.
/// The trainer uses it.
#pragma once
#include <tapegrad/models/optim/optimizer.h>

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

namespace detail {
// The moments of some parameters of an optimiser, and their step.
class AdamWMoments {
 public:
  explicit AdamWMoments(const AdamWConfig&);
  void add(size_t entry, const Tensor& m, const Tensor& v, const AdamWOverrides& own);
  bool has(size_t entry) const { return entry < m_.size() && bool(m_[entry]); }
  // A step of the entries `which`, all of which have moments.
  void step(const std::vector<size_t>& which, const std::vector<Tensor>& w, const std::vector<Tensor>& grads,
            const Tensor& norm, double max_norm, const Ref<OptimizerClock>& clock) const;

 private:
  AdamWOptions options_;
  std::vector<Tensor> m_, v_;  // by entry
  std::vector<AdamWOverrides> own_;
};
}  // namespace detail

/// An Optimizer with two moments per parameter, "<name>.m" and "<name>.v" in its state().
class AdamW : public Optimizer {
 public:
  /// See Optimizer for the rules of parameters and groups. Both moments start at 0, in the parameter's dtype. A step is
  /// one op for all parameters.
  explicit AdamW(std::vector<Parameter>, AdamWConfig = {}, std::vector<ParameterGroup> = {});
  const AdamWConfig& config() const { return config_; }  ///< as it was given; lr() is the current rate

 private:
  void update(const Step&) override;
  AdamWConfig config_;
  detail::AdamWMoments moments_;
};

}  // namespace tg
