#include <tapegrad/core/mode.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/optim_step.h>

#include <cmath>
#include <set>

namespace tg {
namespace {
// A leaf of its own with the values of `name` in `state`, or an Error.
Tensor moment(const StateDict& state, const std::string& name, const Tensor& like) {
  const auto it = state.find(name);
  TG_CHECK(it != state.end() && it->second, value,
           "[adamw] the state has no '{}'. Load the state that was saved with these parameters.", name);
  const Tensor& t = it->second;
  TG_CHECK(t.shape() == like.shape() && is_float(t.dtype()), shape,
           "[adamw] '{}' is {} in the state and must be {}. Load the state that was saved with these parameters.", name,
           t.layout(), like.layout());
  return t.detach().to(like.dtype()).to(like.device()).contiguous();
}
}  // namespace

void AdamWConfig::validate() const {
  TG_CHECK(lr >= 0 && std::isfinite(lr), value, "[adamw] lr is {}. It must be finite and 0 or more.", lr);
  TG_CHECK(beta1 >= 0 && beta1 < 1, value, "[adamw] beta1 is {}. It must be in [0, 1).", beta1);
  TG_CHECK(beta2 >= 0 && beta2 < 1, value, "[adamw] beta2 is {}. It must be in [0, 1).", beta2);
  TG_CHECK(eps > 0 && std::isfinite(eps), value, "[adamw] eps is {}. It must be finite and more than 0.", eps);
  TG_CHECK(weight_decay >= 0 && std::isfinite(weight_decay), value,
           "[adamw] weight_decay is {}. It must be finite and 0 or more.", weight_decay);
}

AdamW::AdamW(std::vector<Parameter> parameters, AdamWConfig config)
    : config_(config), count_(make_ref<OptimizerClock>(config.lr, 0)) {
  config_.validate();
  TG_CHECK(!parameters.empty(), value, "[adamw] no parameters. Pass Params::trainable() after the model is made.");
  std::set<std::string_view> names;
  std::set<uint64_t> ids;
  for (const Parameter& p : parameters) {
    TG_CHECK(p.tensor && p.tensor.requires_grad(), value,
             "[adamw] '{}' does not require a gradient. Pass Params::trainable(), which leaves frozen parameters out.",
             p.name);
    TG_CHECK(p.tensor.dtype() == DType::f32 || p.tensor.dtype() == DType::f64, dtype,
             "[adamw] '{}' is {}. Updates of 16-bit values are mostly rounded away; keep the parameters in f32.",
             p.name, p.tensor.layout());
    TG_CHECK(names.insert(p.name).second && ids.insert(p.tensor.id()).second, value,
             "[adamw] '{}' comes twice. Each parameter is updated once a step.", p.name);
    const Parameter& first = parameters[0];
    TG_CHECK(p.tensor.device() == first.tensor.device(), device,
             "[adamw] '{}' lies on {}, '{}' on {}. A step is of one device: make an optimiser for each.", p.name,
             p.tensor.device(), first.name, first.tensor.device());
  }
  NoGradScope off;
  NameScope here("adamw");
  for (Parameter& p : parameters) {
    m_.push_back(zeros_like(p.tensor).label(p.name + ".m"));
    v_.push_back(zeros_like(p.tensor).label(p.name + ".v"));
    weight_decay_.push_back(config_.decay_all || p.tensor.ndim() >= 2 ? config_.weight_decay : 0);
    names_.push_back(std::move(p.name));
    w_.push_back(std::move(p.tensor));
  }
}

std::vector<Tensor> AdamW::gradients(const GradMap& grads) const {
  std::vector<Tensor> r;
  r.reserve(w_.size());
  for (size_t i = 0; i < w_.size(); ++i) {
    r.push_back(grads[w_[i]]);
    TG_CHECK(r.back(), missing_gradient,
             "[adamw] '{}' {} has no gradient: the loss does not depend on it. Each parameter must be reached by "
             "backward(); freeze it with requires_grad_(false) before the optimiser is made, or leave it out.",
             names_[i], w_[i].shape());
  }
  return r;
}

void AdamW::set_lr(double lr) {
  AdamWConfig{.lr = lr}.validate();
  count_->lr = lr;
}
Tensor AdamW::step(const GradMap& grads, StepOptions o) {
  TG_CHECK(o.clip_norm >= 0, value, "[adamw] clip_norm is {}. It must be more than 0, or 0 for no clipping.",
           o.clip_norm);
  NoGradScope off;
  const ProfileRange range(Phase::optimizer);
  NameScope here("adamw");
  const std::vector<Tensor> g = gradients(grads);
  const Tensor norm = o.norm || o.clip_norm == 0 ? o.norm : global_norm(g);
  const AdamWOptions numbers{.beta1 = config_.beta1,
                             .beta2 = config_.beta2,
                             .eps = config_.eps,
                             .decay = config_.decay,
                             .eps_placement = config_.eps_placement};
  adamw_step({.w = w_, .m = m_, .v = v_, .grad = g, .weight_decay = weight_decay_}, numbers, count_->lr, count_->t + 1,
             o.clip_norm > 0 ? norm : Tensor(), o.clip_norm, count_);
  ++count_->t;
  return norm;
}

StateDict AdamW::state() const {
  StateDict r;
  for (size_t i = 0; i < names_.size(); ++i) {
    r[names_[i] + ".m"] = m_[i].detach();
    r[names_[i] + ".v"] = v_[i].detach();
  }
  return r;
}
void AdamW::load_state(const StateDict& state, int64_t steps) {
  constexpr int64_t kMost = int64_t(1) << 53;  // so that counting on cannot overflow
  TG_CHECK(steps >= 0 && steps <= kMost, value, "[adamw] steps is {}. It must be from 0 to 2^53.", steps);
  NoGradScope off;
  std::vector<Tensor> m, v;
  std::set<std::string> known;
  for (size_t i = 0; i < names_.size(); ++i) {
    m.push_back(moment(state, *known.insert(names_[i] + ".m").first, m_[i]));
    v.push_back(moment(state, *known.insert(names_[i] + ".v").first, v_[i]));
  }
  for (auto& [name, t] : state)
    TG_CHECK(known.contains(name), value,
             "[adamw] '{}' of the state belongs to none of the {} parameters. Load the state "
             "that was saved with these parameters.",
             name, names_.size());
  for (size_t i = 0; i < names_.size(); ++i) {
    m_[i].assign(m[i]);
    v_[i].assign(v[i]);
  }
  count_->t = steps;
}

}  // namespace tg
