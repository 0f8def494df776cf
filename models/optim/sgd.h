/// @file
/// Sgd: stochastic gradient descent, plain or with momentum (Polyak 1964; Nesterov's form of Sutskever et al., 2013).
/// The arithmetic is sgd_step() in ops/training/optim_step.h, that of torch.optim.SGD.
#pragma once
#include <tapegrad/models/optim/optimizer.h>

namespace tg {

/// Settings of an Sgd.
struct SgdConfig {
  double lr = 1e-2;
  double momentum = 0;  ///< kept buffer fraction, [0, 1); 0: no buffers
  /// Fraction of a gradient that the buffer omits after the first step; in [0, 1).
  double dampening = 0;
  /// Added to the gradient, for parameters with two or more dimensions.
  double weight_decay = 0;
  bool decay_all = false;
  bool nesterov = false;         ///< looks ahead; needs momentum > 0, dampening 0
  bool skip_non_finite = false;  ///< see SgdOptions

  /// Throws an Error that names the first wrong field.
  void validate() const;
  bool operator==(const SgdConfig&) const = default;
};

/// An Optimizer with a buffer per parameter, "<name>.momentum" in its state(), or none without momentum.
class Sgd : public Optimizer {
 public:
  /// Optimizer has the rules of parameters, groups and ranks; groups must not set betas. A step is one op for all
  /// parameters. The first step sets each buffer to its gradient; a buffer that MissingGrad::skip leaves out starts at
  /// 0.
  explicit Sgd(std::vector<Parameter>, SgdConfig = {}, std::vector<ParameterGroup> = {},
               const std::shared_ptr<Communicator>& = nullptr);
  const SgdConfig& config() const { return config_; }

 private:
  void update(const Step&) override;
  SgdConfig config_;
  std::vector<Tensor> buffers_;  // indexed by entry; empty without momentum
  std::vector<SgdOverrides> own_;
};

}  // namespace tg
