#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/optim/optimizer.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace tg {
namespace {
constexpr int64_t kMostSteps = int64_t(1) << 53;  // counting cannot overflow

// Tensor `name`, shaped like `like`, or an Error.
Tensor loaded(std::string_view op, const StateDict& state, const std::string& name, const Tensor& like) {
  const auto it = state.find(name);
  TG_CHECK(it != state.end() && it->second, value,
           "[{}] the state has no '{}'. Load the state that was saved with these parameters.", op, name);
  const Tensor& t = it->second;
  TG_CHECK(t.shape() == like.shape() && is_float(t.dtype()), shape,
           "[{}] '{}' is {} in the state and must be {}. Load the state that was saved with these parameters.", op,
           name, t.layout(), like.layout());
  return t.detach();
}
std::string names_of(const std::vector<Parameter>& all) {
  constexpr size_t kMost = 20;
  std::string s;
  for (size_t i = 0; i < std::min(all.size(), kMost); ++i) s += (i > 0 ? ", " : "") + all[i].name;
  return all.size() > kMost ? fmt::format("{} and {} more", s, all.size() - kMost) : s;
}
}  // namespace

void detail::check_rate(std::string_view op, std::string_view name, double x) {
  TG_CHECK(x >= 0 && std::isfinite(x), value, "[{}] {} is {}. It must be finite and 0 or more.", op, name, x);
}
void detail::check_fraction(std::string_view op, std::string_view name, double x) {
  TG_CHECK(x >= 0 && x < 1, value, "[{}] {} is {}. It must be in [0, 1).", op, name, x);
}

Tensor detail::norm_in_parts(Inputs grads, int64_t bytes) {
  std::vector<Tensor> sums;
  bool wide = false;
  for (size_t i = 0, first = 0, part = 0; i < grads.size(); ++i) {
    wide |= grads[i].dtype() == DType::f64;
    part += grads[i].layout().bytes();
    if (part < size_t(bytes) && i + 1 < grads.size()) continue;
    sums.push_back(square_sums(grads.subspan(first, i + 1 - first)));
    first = i + 1, part = 0;
  }
  return norm_of_square_sums(sums.size() == 1 ? sums[0] : concat(sums), wide ? DType::f64 : DType::f32);
}

Optimizer::Optimizer(std::string_view name, std::vector<Parameter> parameters, double lr,
                     std::span<const ParameterGroup> groups, const std::shared_ptr<Communicator>& comm,
                     const std::function<bool(const Parameter&)>& whole)
    : op_(name), clock_(make_ref<OptimizerClock>(lr, 0)) {
  TG_CHECK(!parameters.empty(), value, "[{}] no parameters. Pass Params::trainable() after the model is made.", op_);
  std::set<std::string_view> names;
  std::set<uint64_t> ids;
  for (const Parameter& p : parameters) {
    TG_CHECK(p.tensor && p.tensor.requires_grad(), value,
             "[{}] '{}' does not require a gradient. Pass Params::trainable(), which leaves frozen parameters out.",
             op_, p.name);
    TG_CHECK(!p.low || op_ == "adamw", value, "[{}] '{}' is split. Only AdamW updates it: use that.", op_, p.name);
    TG_CHECK(p.low || p.tensor.dtype() == DType::f32 || p.tensor.dtype() == DType::f64, dtype,
             "[{}] '{}' is {}. Updates of 16-bit values are mostly rounded away; keep the parameters in f32.", op_,
             p.name, p.tensor.layout());
    TG_CHECK(names.insert(p.name).second && ids.insert(p.tensor.id()).second, value,
             "[{}] '{}' is listed twice. Each parameter is updated once per step.", op_, p.name);
    const Parameter& first = parameters[0];
    TG_CHECK(p.tensor.device() == first.tensor.device(), device,
             "[{}] '{}' is on {}, '{}' on {}. A step runs on one device: make an optimiser for each.", op_, p.name,
             p.tensor.device(), first.name, first.tensor.device());
  }
  for (const ParameterGroup& g : groups) {
    const auto named = [&](std::string_view field) { return fmt::format("{} of the group '{}'", field, g.pattern); };
    detail::check_rate(op_, named("lr_scale"), g.lr_scale);
    if (g.lr) detail::check_rate(op_, named("lr"), *g.lr);
    TG_CHECK(!g.lr || (lr > 0 && g.lr_scale == 1), value,
             "[{}] the group '{}' has an lr of {}, and lr is {}, its lr_scale {}. It needs lr above 0 and no lr_scale.",
             op_, g.pattern, *g.lr, lr, g.lr_scale);
    if (g.weight_decay) detail::check_rate(op_, named("weight_decay"), *g.weight_decay);
    if (g.beta1) detail::check_fraction(op_, named("beta1"), *g.beta1);
    if (g.beta2) detail::check_fraction(op_, named("beta2"), *g.beta2);
  }
  std::vector<size_t> members(groups.size());
  for (const Parameter& p : parameters) {
    const auto g = std::ranges::find_if(groups, [&](auto& x) { return detail::glob_matches(x.pattern, p.name); });
    if (g != groups.end()) ++members[size_t(g - groups.begin())];
    entries_.push_back({p.name, p.tensor, p.row_splits, p.low, g == groups.end() ? ParameterGroup{} : *g});
    if (ParameterGroup& own = entries_.back().own; own.lr) own.lr_scale = *own.lr / lr;
  }
  for (size_t i = 0; i < groups.size(); ++i)
    TG_CHECK(members[i] > 0, value,
             "[{}] the group '{}' has no parameter. Its pattern must match one that no earlier group has taken; * "
             "stands for any characters. The parameters are {}.",
             op_, groups[i].pattern, names_of(parameters));
  if (!comm || comm->size() == 1) return;
  std::vector<bool> stays;
  for (const Parameter& p : parameters) stays.push_back(whole && whole(p));
  partition_ = std::make_shared<const Partition>(std::move(parameters), std::move(stays), comm);
}

Tensor Optimizer::new_state(size_t entry, std::string_view what, std::optional<DType> dtype) {
  const NoGradScope off;
  const NameScope here(op_);
  const std::string name = fmt::format("{}.{}", entries_[entry].name, what);
  const Tensor& w = entries_[entry].w;
  const DType wide = entries_[entry].low ? DType::f32 : w.dtype(), stored = dtype.value_or(wide);
  TG_CHECK(stored == wide || wide == DType::f32, dtype,
           "[{}] '{}' is {}, and its state is to be {}. It is bf16 over f32 parameters only: leave moments unset.", op_,
           entries_[entry].name, w.layout(), stored);
  const int64_t n = partition_ ? partition_->part(entry).n : 1;
  const bool whole = !partition_ || partition_->is_whole(entry);
  Tensor t;
  if (n > 0 || !whole) t = zeros(whole ? w.shape() : Shape{n}, stored, w.device()).label(name);
  state_[name] = {entry, t, stored};
  return t;
}
double Optimizer::decay_of(size_t entry, double decay, bool decay_all) const {
  const Entry& e = entries_[entry];
  return e.own.weight_decay.value_or(decay_all || e.w.ndim() >= 2 ? decay : 0);
}
void Optimizer::check_betas(const std::function<bool(size_t)>& has) const {
  std::set<std::string_view> with, used;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const ParameterGroup& g = entries_[i].own;
    if (g.beta1 || g.beta2) (has(i) ? used : with).insert(g.pattern);
  }
  for (const std::string_view pattern : with)
    TG_CHECK(used.contains(pattern), value,
             "[{}] the group '{}' sets beta1 or beta2, which none of its parameters uses here. Leave them out.", op_,
             pattern);
}

Optimizer::Step Optimizer::reached(const GradMap& grads, MissingGrad missing_grad) const {
  Step s;
  for (auto* list : {&s.w, &s.low, &s.grads}) list->reserve(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (partition_ && partition_->is_whole(i) && partition_->part(i).n == 0) continue;
    Tensor g = grads.native(e.w);
    if (partition_) {
      TG_CHECK(g && g.shape() == Shape{partition_->part(i).n}, shape,
               "[{}] the gradient of '{}' is {}, and this rank owns {} of its elements. Pass the gradients of "
               "GradientReducer::finish().",
               op_, e.name, g ? fmt::format("{}", g) : "missing", partition_->part(i).n);
      if (partition_->is_whole(i)) g = reshape(g, e.w.shape());
    }
    TG_CHECK(
        g || missing_grad != MissingGrad::error, missing_gradient,
        "[{}] '{}' {} has no gradient: the loss does not depend on it. Each parameter must be reached by "
        "backward(); freeze it with requires_grad_(false) before the optimiser is made, leave it out, or pass "
        ".missing_grad = MissingGrad::skip (it stays as it is) or MissingGrad::zero (its gradient is 0) to step().",
        op_, e.name, e.w.shape());
    if (!g && missing_grad == MissingGrad::skip) continue;
    s.which.push_back(i), s.w.push_back(e.w), s.low.push_back(e.low), s.grads.push_back(g ? g : zeros_like(e.w));
    if (partition_) s.first.push_back(partition_->part(i).first);
  }
  TG_CHECK(!s.which.empty() || partition_, missing_gradient,
           "[{}] none of the {} parameters has a gradient. Pass backward() of a loss that depends on one of them.", op_,
           entries_.size());
  return s;
}
Tensor Optimizer::step(const GradMap& grads, StepOptions o) {
  TG_CHECK(o.clip_norm >= 0, value, "[{}] clip_norm is {}. It must be more than 0, or 0 for no clipping.", op_,
           o.clip_norm);
  const detail::OneUser::Use alone = user_->use(op_, "optimiser");
  NoGradScope off;
  const ProfileRange range(Phase::optimizer);
  NameScope here(op_);
  Step s = reached(grads, o.missing_grad);
  Tensor norm = o.norm;
  if (!norm && o.clip_norm > 0) norm = partition_ ? partition_->norm(grads) : detail::norm_in_parts(s.grads);
  if (o.clip_norm > 0) s.norm = norm, s.max_norm = o.clip_norm;
  update(s);
  if (partition_) partition_->gather_parameters();
  if (!detail::running_dry()) ++clock_->t;
  return norm;
}
void Optimizer::set_lr(double lr) {
  detail::forbid_in_trace(op_, "the learning rate is set");
  detail::check_rate(op_, "lr", lr);
  clock_->lr = lr;
}

void Optimizer::uncount_step() {
  detail::forbid_in_trace(op_, "a step is uncounted");
  TG_CHECK(clock_->t > 0, state, "[{}] no step is counted. uncount_step() follows a step.", op_);
  --clock_->t;
}
double Optimizer::lr() const {
  detail::forbid_in_trace(op_, "the host reads the learning rate");
  return clock_->lr;
}
int64_t Optimizer::steps() const {
  detail::forbid_in_trace(op_, "the host reads the number of steps");
  return clock_->t;
}

StateDict Optimizer::state() const {
  StateDict r;
  for (const auto& [name, s] : state_) {
    if (!partition_) {
      r[name] = s.t.detach();
      continue;
    }
    const Tensor owned = s.t ? reshape(s.t, {s.t.numel()}) : zeros({0}, s.dtype);
    if (const Tensor t = partition_->gather_to_first(s.entry, owned)) r[name] = t;
  }
  return r;
}
std::map<std::string, Layout> Optimizer::state_layouts() const {
  std::map<std::string, Layout> r;
  for (const auto& [name, s] : state_) {
    const Layout& l = entries_[s.entry].w.layout();
    r.emplace(name, Layout::contiguous(l.shape, s.dtype, l.device));
  }
  return r;
}
void Optimizer::load_state(const StateDict& state, int64_t steps) {
  const detail::OneUser::Use alone = user_->use(op_, "optimiser");
  detail::forbid_in_trace(op_, "a state is loaded");
  TG_CHECK(steps >= 0 && steps <= kMostSteps, value, "[{}] steps is {}. It must be from 0 to 2^53.", op_, steps);
  NoGradScope off;
  std::vector<Tensor> values;
  for (const auto& [name, s] : state_) {
    Tensor t = loaded(op_, state, name, entries_[s.entry].w);
    if (partition_ && !partition_->is_whole(s.entry)) {
      const Shard p = partition_->part(s.entry);
      // concat copies: a view would keep the whole tensor.
      t = concat({slice(reshape(t, {t.numel()}), 0, p.first, p.first + p.n)});
    }
    values.push_back(s.t ? t.to(s.t.dtype()).to(s.t.device()).contiguous() : t);
  }
  for (auto& [name, t] : state)
    TG_CHECK(state_.contains(name), value,
             "[{}] '{}' of the state belongs to none of the {} parameters. Load the state that was saved with these "
             "parameters.",
             op_, name, entries_.size());
  size_t k = 0;
  for (const auto& [name, s] : state_) {
    if (s.t) s.t.assign(values[k]);
    ++k;
  }
  clock_->t = steps;
}

}  // namespace tg
