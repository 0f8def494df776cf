#include <tapegrad/core/check.h>
#include <tapegrad/models/optim/adamw.h>

#include <cmath>

namespace tg {

void AdamWConfig::validate() const {
  detail::check_rate("adamw", "lr", lr);
  detail::check_fraction("adamw", "beta1", beta1);
  detail::check_fraction("adamw", "beta2", beta2);
  TG_CHECK(eps > 0 && std::isfinite(eps), value, "[adamw] eps is {}. It must be finite and more than 0.", eps);
  detail::check_rate("adamw", "weight_decay", weight_decay);
  TG_CHECK(!moments || *moments == DType::bf16 || *moments == DType::f32, dtype,
           "[adamw] moments is {}. It must be bf16 or f32, or unset for the parameters' dtype.", *moments);
}

detail::AdamWMoments::AdamWMoments(const AdamWConfig& c)
    : options_{.beta1 = c.beta1,
               .beta2 = c.beta2,
               .eps = c.eps,
               .decay = c.decay,
               .eps_placement = c.eps_placement,
               .skip_non_finite = c.skip_non_finite,
               .seed = c.seed} {}
void detail::AdamWMoments::add(size_t entry, const Tensor& m, const Tensor& v, AdamWOverrides own) {
  own.stream = entry;
  m_.resize(entry + 1), v_.resize(entry + 1), own_.resize(entry + 1);
  m_[entry] = m, v_[entry] = v, own_[entry] = own;
}
void detail::AdamWMoments::step(const OptimizerStep& s, const Ref<OptimizerClock>& clock) const {
  std::vector<Tensor> m, v;
  std::vector<AdamWOverrides> own;
  m.reserve(s.which.size()), v.reserve(s.which.size()), own.reserve(s.which.size());
  for (const size_t i : s.which) m.push_back(m_[i]), v.push_back(v_[i]), own.push_back(own_[i]);
  adamw_step({.w = s.w, .m = m, .v = v, .grad = s.grads, .each = own, .first = s.first, .low = s.low}, options_,
             clock->lr, clock->t + 1, s.norm, s.max_norm, clock);
}
void detail::AdamWMoments::step(size_t entry, const Tensor& w, const GradientProduct& grad, const Tensor& norm,
                                double max_norm, const Ref<OptimizerClock>& clock, bool counts) const {
  adamw_product_step(w, m_[entry], v_[entry], grad, options_, clock->lr, clock->t + 1, own_[entry], norm, max_norm,
                     clock, counts);
}

AdamW::AdamW(std::vector<Parameter> parameters, AdamWConfig config, std::vector<ParameterGroup> groups,
             const std::shared_ptr<Communicator>& comm)
    : Optimizer("adamw", std::move(parameters), detail::valid(config).lr, groups, comm),
      config_(config),
      moments_(config) {
  for (size_t i = 0; i < entries().size(); ++i) {
    const ParameterGroup& own = entries()[i].own;
    moments_.add(i, new_state(i, "m", config.moments), new_state(i, "v", config.moments),
                 {.lr_scale = own.lr_scale,
                  .weight_decay = decay_of(i, config.weight_decay, config.decay_all),
                  .beta1 = own.beta1,
                  .beta2 = own.beta2});
  }
}
void AdamW::update(const Step& s) { moments_.step(s, clock()); }

}  // namespace tg
