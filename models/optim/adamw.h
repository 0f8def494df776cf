/// @file
/// AdamW: the state of Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019), and the choice of decaying
/// parameters. adamw_step() in ops/training/optim_step.h has the arithmetic; schedule.h has learning rates.
#pragma once
#include <tapegrad/models/optim/optimizer.h>

namespace tg {

/// Settings of an AdamW.
struct AdamWConfig {
  double lr = 3e-4;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  /// For parameters with two or more dimensions, not biases and norms.
  double weight_decay = 0.01;
  bool decay_all = false;
  WeightDecay decay = WeightDecay::before;
  EpsPlacement eps_placement = EpsPlacement::corrected;
  bool skip_non_finite = false;  ///< see AdamWOptions
  /// bf16 (over f32 parameters, rounded stochastically); unset: the parameters' dtype.
  std::optional<DType> moments = {};
  uint64_t seed = 0;  ///< rounding seed

  /// Adam without weight decay.
  static AdamWConfig adam(double lr = 1e-3) { return {.lr = lr, .weight_decay = 0, .decay = WeightDecay::l2}; }
  /// Throws an Error that names the first wrong field.
  void validate() const;
  bool operator==(const AdamWConfig&) const = default;
};

/// Options of AdamW::backward_and_step().
struct FoldedStepOptions {
  /// Maximum global gradient norm; 0: no clipping.
  double clip_norm = 0;
  MissingGrad missing_grad = MissingGrad::error;
  /// Gradients that are products over more rows are stored: a GEMM is faster.
  int64_t max_rows = 64;
  /// Patterns of parameters with stored gradients; each must match.
  std::vector<std::string> stored = {};
};

namespace detail {
// AdamW parameters' moments and their step.
class AdamWMoments {
 public:
  explicit AdamWMoments(const AdamWConfig&);
  void add(size_t entry, const Tensor& m, const Tensor& v, AdamWOverrides own);
  bool has(size_t entry) const { return entry < m_.size() && bool(m_[entry]); }
  // All entries must have moments.
  void step(const OptimizerStep&, const Ref<OptimizerClock>& clock) const;
  // A step of one entry with a product as gradient. `counts`: this op counts the step.
  void step(size_t entry, const Tensor& w, const GradientProduct&, const Tensor& norm, double max_norm,
            const Ref<OptimizerClock>& clock, bool counts) const;

 private:
  AdamWOptions options_;
  std::vector<Tensor> m_, v_;  // indexed by entry
  std::vector<AdamWOverrides> own_;
};
}  // namespace detail

/// An Optimizer with two moments per parameter, "<name>.m" and "<name>.v" in its state().
class AdamW : public Optimizer {
 public:
  /// Optimizer has the rules of parameters, groups and ranks. Both moments start at 0. A step is one op for all
  /// parameters.
  explicit AdamW(std::vector<Parameter>, AdamWConfig = {}, std::vector<ParameterGroup> = {},
                 const std::shared_ptr<Communicator>& = nullptr);
  const AdamWConfig& config() const { return config_; }

  /// backward(loss) and step() in one. If a gradient is one matmul over few rows, as for a linear layer on a small
  /// batch, it is not stored: the step computes it tile by tile. Values equal those of backward() and step(), except
  /// for the last bits in f64 or with clipping. No gradient can be read or added to. Clipping costs two small matmuls
  /// per folded gradient. Ops run lazily, and have run on return outside of a LazyScope or a compiled function. Returns
  /// the norm before clipping, or empty.
  ///
  /// Errors, with nothing changed: those of backward() and step(); a weight used by two layers (list it in `stored`); a
  /// sharded optimiser.
  Tensor backward_and_step(const Tensor& loss, FoldedStepOptions = {});

 private:
  void update(const Step&) override;
  AdamWConfig config_;
  detail::AdamWMoments moments_;
};

}  // namespace tg
