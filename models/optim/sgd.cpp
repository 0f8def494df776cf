#include <tapegrad/core/check.h>
#include <tapegrad/models/optim/sgd.h>

namespace tg {

void SgdConfig::validate() const {
  detail::check_rate("sgd", "lr", lr);
  detail::check_fraction("sgd", "momentum", momentum);
  detail::check_fraction("sgd", "dampening", dampening);
  detail::check_rate("sgd", "weight_decay", weight_decay);
  TG_CHECK(momentum > 0 || dampening == 0, value,
           "[sgd] dampening is {} and momentum 0. There is no buffer to dampen: set momentum, or leave dampening out.",
           dampening);
  TG_CHECK(!nesterov || (momentum > 0 && dampening == 0), value,
           "[sgd] nesterov with momentum {} and dampening {}. It needs momentum above 0 and dampening 0.", momentum,
           dampening);
}

Sgd::Sgd(std::vector<Parameter> parameters, SgdConfig config, std::vector<ParameterGroup> groups,
         const std::shared_ptr<Communicator>& comm)
    : Optimizer("sgd", std::move(parameters), detail::valid(config).lr, groups, comm), config_(config) {
  check_betas([](size_t) { return false; });
  for (size_t i = 0; i < entries().size(); ++i) {
    if (config.momentum > 0) buffers_.push_back(new_state(i, "momentum"));
    own_.push_back(
        {.lr_scale = entries()[i].own.lr_scale, .weight_decay = decay_of(i, config.weight_decay, config.decay_all)});
  }
}
void Sgd::update(const Step& s) {
  std::vector<Tensor> momentum;
  std::vector<SgdOverrides> own;
  for (const size_t i : s.which) {
    own.push_back(own_[i]);
    if (!buffers_.empty()) momentum.push_back(buffers_[i]);
  }
  sgd_step({.w = s.w, .grad = s.grads, .momentum = momentum, .each = own, .first = s.first},
           {.momentum = config_.momentum,
            .dampening = config_.dampening,
            .nesterov = config_.nesterov,
            .skip_non_finite = config_.skip_non_finite},
           clock()->lr, clock()->t + 1, s.norm, s.max_norm, clock());
}

}  // namespace tg
