#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/optim/muon.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/composed.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tg {
namespace {
constexpr double kLeastNorm = 1e-7;  // zeros stay zeros
constexpr int64_t kMostIterations = 100;

bool matches(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& p) { return detail::glob_matches(p, name); });
}
double scale_of(MuonScale kind, double rows, double columns) {
  if (rows == 0 || columns == 0) return 1;
  return kind == MuonScale::original ? std::sqrt(std::max(1.0, rows / columns))
                                     : 0.2 * std::sqrt(std::max(rows, columns));
}
}  // namespace

void MuonConfig::validate() const {
  TG_CHECK(lr > 0 && std::isfinite(lr), value,
           "[muon] lr is {}. It must be finite and more than 0, because AdamW's rate is relative to it; set_lr(0) is "
           "allowed.",
           lr);
  detail::check_fraction("muon", "momentum", momentum);
  detail::check_rate("muon", "weight_decay", weight_decay);
  TG_CHECK(ns_steps >= 1 && ns_steps <= kMostIterations, value, "[muon] ns_steps is {}. It must be from 1 to {}.",
           ns_steps, kMostIterations);
  TG_CHECK(std::isfinite(ns.a) && std::isfinite(ns.b) && std::isfinite(ns.c), value,
           "[muon] the coefficients are {}, {} and {}. They must be finite.", ns.a, ns.b, ns.c);
  TG_CHECK(ns_dtype == DType::bf16 || ns_dtype == DType::f32 || ns_dtype == DType::f64, value,
           "[muon] ns_dtype is {}. It must be bf16, f32 or f64.", ns_dtype);
  adamw.validate();
}

Tensor detail::orthogonalize(const Tensor& x, int64_t steps, DType dtype, NewtonSchulz by) {
  TG_CHECK(x.ndim() == 2, shape, "[orthogonalize] {} is not a matrix. Pass (rows, columns).", x);
  const NameScope here("orthogonalize");
  const bool tall = x.size(0) > x.size(1);
  const Tensor norm = maximum(global_norm({x}), kLeastNorm).to(x.dtype());
  Tensor y = ((tall ? transpose(x) : x) / norm).to(dtype);
  for (int64_t i = 0; i < steps; ++i) {
    const Tensor a = matmul(y, y, {.trans_b = true});
    y = y * by.a + matmul(a * by.b + matmul(a, a) * by.c, y);
  }
  y = y.to(x.dtype());
  return tall ? transpose(y) : y;
}

Muon::Muon(std::vector<Parameter> parameters, MuonConfig config, std::vector<ParameterGroup> groups,
           const std::shared_ptr<Communicator>& comm)
    : Optimizer("muon", std::move(parameters), detail::valid(config).lr, groups, comm,
                [&](const Parameter& p) { return p.tensor.ndim() == 2 && !matches(config.others, p.name); }),
      config_(config),
      adamw_(config.adamw) {
  const auto matched = [&](const std::string& pattern) {
    return std::ranges::any_of(entries(), [&](const Entry& e) { return detail::glob_matches(pattern, e.name); });
  };
  if (config.others != MuonConfig{}.others)
    for (const std::string& pattern : config.others)
      TG_CHECK(matched(pattern), value,
               "[muon] '{}' of `others` matches no parameter. Each pattern must match one; * stands for any "
               "characters.",
               pattern);
  for (size_t i = 0; i < entries().size(); ++i) {
    const auto& [name, w, parts, low, own] = entries()[i];
    Matrix& m = matrices_.emplace_back();
    if (w.ndim() != 2 || matches(config.others, name)) {
      adamw_.add(i, new_state(i, "m", config.adamw.moments), new_state(i, "v", config.adamw.moments),
                 {.lr_scale = own.lr ? own.lr_scale : own.lr_scale * config.adamw.lr / config.lr,
                  .weight_decay = decay_of(i, config.adamw.weight_decay, config.adamw.decay_all),
                  .beta1 = own.beta1,
                  .beta2 = own.beta2});
      continue;
    }
    m.momentum = new_state(i, "momentum");
    m.own = {.lr_scale = own.lr_scale, .weight_decay = own.weight_decay.value_or(config.weight_decay)};
    m.rows = parts.empty() ? Dims{w.size(0)} : parts;
    int64_t sum = 0;
    for (const int64_t rows : m.rows) sum += rows;
    TG_CHECK(sum == w.size(0) && (parts.empty() || std::ranges::min(parts) > 0), value,
             "[muon] '{}' {} has parts of {} rows. They must be above 0 and sum to {}.", name, w.shape(),
             Shape(m.rows.begin(), m.rows.end()), w.size(0));
  }
  check_betas([&](size_t i) { return adamw_.has(i); });
  TG_CHECK(!matrices().empty(), value,
           "[muon] none of the {} parameters is a matrix that `others` does not exclude. Use AdamW.", entries().size());
}
std::vector<std::string> Muon::matrices() const {
  std::vector<std::string> r;
  for (size_t i = 0; i < matrices_.size(); ++i)
    if (!matrices_[i].rows.empty()) r.push_back(entries()[i].name);
  return r;
}

// Each part's scaled orthogonal update.
Tensor Muon::direction(const Matrix& m, const Tensor& ahead) const {
  const auto of = [&](const Tensor& part) {
    const double scale = scale_of(config_.scale, double(part.size(0)), double(part.size(1)));
    const Tensor y = detail::orthogonalize(part, config_.ns_steps, config_.ns_dtype, config_.ns);
    return scale == 1 ? y : y * scale;
  };
  if (m.rows.size() == 1) return of(ahead);
  std::vector<Tensor> parts;
  for (const Tensor& part : split(ahead, m.rows, 0)) parts.push_back(of(part));
  return concat(parts, 0);
}

void Muon::update(const Step& s) {
  for (size_t k = 0; k < s.which.size(); ++k) {  // checked before changes
    const Entry& e = entries()[s.which[k]];
    const Tensor& g = s.grads[k];
    if (matrices_[s.which[k]].rows.empty()) continue;  // AdamW's op checks these
    TG_CHECK(g.shape() == e.w.shape() && widened(g).dtype() == e.w.dtype(), shape,
             "[muon] the gradient of '{}' is {}, and the parameter {}. Their shapes and dtypes must be equal.", e.name,
             g.layout(), e.w.layout());
  }
  Tensor clip;
  if (s.norm) clip = minimum(s.max_norm / (s.norm + 1e-6), 1);
  const bool skip = config_.adamw.skip_non_finite;
  const Tensor finite = skip && s.norm ? isfinite(s.norm) : Tensor();
  const double beta = config_.momentum;
  const Tensor keep = finite ? where(finite, beta, full({}, 1, DType::f64, finite.device())) : Tensor();
  Step matrices, rest{.norm = s.norm, .max_norm = s.max_norm};
  std::vector<Tensor> momentum, updates;
  std::vector<SgdOverrides> own;
  const bool at_once = !lazy_enabled();
  for (size_t k = 0; k < s.which.size(); ++k) {
    const Matrix& m = matrices_[s.which[k]];
    (m.rows.empty() ? rest : matrices).add(s, k);
    if (m.rows.empty()) continue;
    const LazyScope fused;  // fuses elementwise ops
    const Tensor g = widened(s.grads[k]) * (1 - beta), in = clip ? g * clip.to(g.dtype()) : g;
    momentum.push_back(finite ? m.momentum * keep.to(g.dtype()) + where(finite, in, 0.0) : m.momentum * beta + in);
    updates.push_back(direction(m, config_.nesterov ? momentum.back() * beta + in : momentum.back()));
    own.push_back(m.own);
    if (at_once) eval({momentum.back(), updates.back()});
  }
  if (!rest.which.empty()) adamw_.step(rest, clock());
  if (s.which.empty()) {  // other ranks own all: an empty update counts the step
    const Tensor& w = entries()[0].w;
    const Tensor none = zeros({0}, w.dtype(), w.device());
    const int64_t first = 0;
    sgd_step({.w = {&w, 1}, .grad = {&none, 1}, .first = {&first, 1}}, {}, clock()->lr, clock()->t + 1, {}, 0, clock());
  }
  if (matrices.which.empty()) return;
  sgd_step({.w = matrices.w, .grad = updates, .each = own}, {.skip_non_finite = skip}, clock()->lr, clock()->t + 1,
           skip ? s.norm : Tensor(), skip ? std::numeric_limits<double>::infinity() : 0, clock(), rest.which.empty());
  for (size_t k = 0; k < momentum.size(); ++k) matrices_[matrices.which[k]].momentum.assign(momentum[k]);
}

}  // namespace tg
