/// @file
/// Direct preference optimisation (Rafailov et al., 2023, arXiv:2305.18290): LoRA adapters learn to prefer one answer
/// to another, without a reward model. The reference is the base without adapters, or with
/// Lora::keep_reference(): no second copy of weights.
#pragma once
#include <tapegrad/models/model/model.h>

namespace tg {

/// Mean over pairs of -log sigmoid(beta ((p_c - r_c) - (p_r - r_r))). policy and reference are (B, 2)
/// log-probabilities of the chosen and the rejected answer. Scalar.
Tensor dpo_loss(const Tensor& policy, const Tensor& reference, double beta);

/// A model with LoRA adapters and DPO's loss(), for a Trainer on its Lora::params(). Inputs are (B, 2, 2, T): chosen
/// and rejected, tokens and targets, as ExampleBatches makes of pairs. Targets are (B); a kept one is a pair: losses
/// are weighted by pairs.
class DpoModel {
 public:
  static constexpr ForwardSupport kSupport{
      .cache = true, .last_only = true, .lengths = true, .compute = true, .recompute = true, .adapters = true};
  /// An Error unless beta is finite and above 0 and a layer has an adapter: new (lora_b is 0) or with a reference.
  explicit DpoModel(Model model, double beta = 0.1);
  /// Logits of tokens (B, T), with adapters.
  Tensor forward(const Tensor& tokens, const ForwardOptions& o = {}) const { return model_.forward(tokens, o); }
  /// dpo_loss(). The reference has no dropout and no gradient. An Error for inputs of another shape, or merged
  /// adapters.
  Tensor loss(const Batch&, const ForwardOptions&) const;
  int64_t context() const { return model_.context(); }
  int64_t vocab_size() const { return model_.vocab_size(); }
  Device device() const { return model_.device(); }
  std::vector<NamedLinear> linears() { return model_.linears(); }

 private:
  Model model_;
  double beta_;
};

}  // namespace tg
