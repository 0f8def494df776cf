#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/model/dpo.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <cmath>

namespace tg {

Tensor dpo_loss(const Tensor& policy, const Tensor& reference, double beta) {
  TG_CHECK(policy.ndim() == 2 && policy.size(1) == 2 && policy.shape() == reference.shape(), shape,
           "[dpo] log-probabilities are {} of the policy and {} of the reference. Both must be (B, 2): chosen and "
           "rejected.",
           policy, reference);
  const Tensor gain = policy - reference;
  return mean(softplus((slice(gain, 1, 0, 1) - slice(gain, 1, 1, 2)) * -beta));
}

DpoModel::DpoModel(Model model, double beta) : model_(std::move(model)), beta_(beta) {
  TG_CHECK(beta > 0 && std::isfinite(beta), value, "[dpo] beta is {}. It must be above 0 and finite; 0.1 is usual.",
           beta);
  TG_CHECK(std::ranges::any_of(model_.linears(), [](const NamedLinear& l) { return bool(l.layer->adapter); }), value,
           "[dpo] the model has no adapters. The reference is the model without them: call apply_lora() first.");
  for (const NamedLinear& l : model_.linears())
    for (const auto& p : l.layer->adapter ? l.layer->adapter->parts : std::vector<nn::LoraAdapter::Part>())
      TG_CHECK(l.layer->adapter->reference || sum(abs(p.delta.b)).item<double>() == 0, state,
               "[dpo] the adapter of '{}' is trained, and the reference would be the model without it. Call "
               "keep_reference() of the Lora first, or merge().",
               l.name);
}
Tensor DpoModel::loss(const Batch& batch, const ForwardOptions& o) const {
  const Tensor& x = batch.inputs;
  TG_CHECK(x.ndim() == 4 && x.size(1) == 2 && x.size(2) == 2, shape,
           "[dpo] inputs are {}. They must be (B, 2, 2, T): chosen and rejected, of each tokens and targets.", x);
  const int64_t b = x.size(0), t = x.size(3);
  const auto rows = [&](int64_t i) { return reshape(slice(x, 2, i, i + 1), {2 * b, t}); };
  const auto log_probs = [&](const ForwardOptions& how) {
    return reshape(-sum(model_.loss({rows(0), rows(1)}, how, Reduction::none), {-1}), {b, 2});
  };
  Tensor reference;
  {
    NoGradScope off;
    reference = log_probs({.compute = o.compute, .adapters = false});
  }
  return dpo_loss(log_probs(o), reference, beta_);
}

}  // namespace tg
