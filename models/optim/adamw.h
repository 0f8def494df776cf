/// @file
/// AdamW: the optimisers Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019): their state, and which
/// parameters decay. The arithmetic is adamw_step() of ops/training/optim_step.h; the learning rate over time is in
/// schedule.h. The trainer uses it.
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
  bool skip_non_finite = false;  ///< see AdamWOptions

  /// Adam without weight decay.
  static AdamWConfig adam(double lr = 1e-3) { return {.lr = lr, .weight_decay = 0, .decay = WeightDecay::l2}; }
  /// Throws an Error that names the first wrong field.
  void validate() const;
  bool operator==(const AdamWConfig&) const = default;
};

/// Options of AdamW::backward_and_step().
struct FoldedStepOptions {
  double clip_norm = 0;  ///< gradients are scaled so that their common norm is at most this; 0 means no clipping
  Unreached unreached = Unreached::error;
  int64_t max_rows = 64;  ///< gradients that are products over more rows are stored: a kernel of products is faster
  /// Patterns of parameters whose gradients are stored whatever they are, for glob_matches(); each must match one.
  std::vector<std::string> stored = {};
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
            const std::vector<int64_t>& first, const Tensor& norm, double max_norm,
            const Ref<OptimizerClock>& clock) const;
  // A step of one entry from a gradient that is a product. `counts`: this op counts the step.
  void step(size_t entry, const Tensor& w, const GradientProduct&, const Tensor& norm, double max_norm,
            const Ref<OptimizerClock>& clock, bool counts) const;

 private:
  AdamWOptions options_;
  std::vector<Tensor> m_, v_;  // by entry
  std::vector<AdamWOverrides> own_;
};
}  // namespace detail

/// An Optimizer with two moments per parameter, "<name>.m" and "<name>.v" in its state().
class AdamW : public Optimizer {
 public:
  /// See Optimizer for the rules of parameters, groups and ranks. Both moments start at 0, in the parameter's dtype. A
  /// step is one op for all parameters.
  explicit AdamW(std::vector<Parameter>, AdamWConfig = {}, std::vector<ParameterGroup> = {},
                 const std::shared_ptr<Communicator>& = nullptr);
  const AdamWConfig& config() const { return config_; }  ///< as it was given; lr() is the current rate

  /// backward(loss) and step() in one, without storing the gradients of weights: where such a gradient is one product
  /// of few rows, as that of a linear layer on a small batch, the step computes it piece by piece in its pass over the
  /// weight and its moments. Values are those of backward() and step(), but for rounding in the last bits of f64. What
  /// it gives up: there are no gradients to look at or to add to, and activations of the tape stay until all of
  /// backward has run. Clipping by the norm costs two small products for each folded gradient, as the square of the
  /// norm of a^T b is the sum of (a a^T) * (b b^T). Gradients of other parameters are stored: biases, norms, tables,
  /// and those in another dtype than their product. Ops run lazily, and have run when it returns, unless the caller is
  /// in a LazyScope or a compiled function. Returns the norm before clipping; without clipping it is empty.
  ///
  /// An Error, with nothing changed, of backward() or step(); and for a weight that is read twice, by two layers, whose
  /// gradient is a sum of products: list it in `stored`. A sharded optimiser cannot do it.
  Tensor backward_and_step(const Tensor& loss, FoldedStepOptions = {});

 private:
  void update(const Step&) override;
  AdamWConfig config_;
  detail::AdamWMoments moments_;
};

}  // namespace tg
