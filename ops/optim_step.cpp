#include <tapegrad/core/trace.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/optim_step.h>

#include <algorithm>
#include <cmath>

namespace tg {
namespace {
constexpr std::string_view kRoles[] = {"weight", "first moment", "second moment", "gradient"};

void check_numbers(const AdamWOptions& o, double lr, int64_t t) {
  TG_CHECK(lr >= 0 && std::isfinite(lr), value, "[adamw_step] lr is {}. It must be 0 or more, and finite.", lr);
  TG_CHECK(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1, value,
           "[adamw_step] beta1 is {}, beta2 is {}. Both must be in [0, 1).", o.beta1, o.beta2);
  TG_CHECK(o.eps > 0 && std::isfinite(o.eps), value, "[adamw_step] eps is {}. It must be above 0, and finite.", o.eps);
  TG_CHECK(t >= 1, value, "[adamw_step] the step's number is {}. Steps count from 1.", t);
}
std::vector<double> decays_of(const AdamWTensors& x, const AdamWOptions& o) {
  const size_t n = x.w.size();
  TG_CHECK(x.weight_decay.empty() || x.weight_decay.size() == n, value,
           "[adamw_step] there are {} weight decays and {} weights. Pass one for each weight, or none for that of the "
           "options.",
           x.weight_decay.size(), n);
  std::vector<double> r(x.weight_decay.begin(), x.weight_decay.end());
  if (r.empty()) r.assign(n, o.weight_decay);
  for (size_t i = 0; i < n; ++i)
    TG_CHECK(r[i] >= 0 && std::isfinite(r[i]), value,
             "[adamw_step] weight_decay of weight {}, {}, is {}. It must be 0 or more, and finite.", i, x.w[i], r[i]);
  return r;
}
// w, m and v, n of each.
void check_distinct(Inputs updated, size_t n) {
  std::vector<std::pair<uint64_t, size_t>> ids;
  ids.reserve(updated.size());
  for (size_t i = 0; i < updated.size(); ++i) ids.emplace_back(updated[i].id(), i);
  std::ranges::sort(ids);
  const auto same = std::ranges::adjacent_find(ids, {}, &std::pair<uint64_t, size_t>::first);
  if (same == ids.end()) return;
  const size_t a = same->second, b = std::next(same)->second;
  detail::fail(Error::Kind::value,
               fmt::format("[adamw_step] {} {} and {} {} are the same tensor, {}. Each needs its own.", kRoles[a / n],
                           a % n, kRoles[b / n], b % n, updated[a]));
}
// The inputs of the op but for their shapes and dtypes.
std::vector<Tensor> checked_inputs(const AdamWTensors& x, const Tensor& norm) {
  const size_t n = x.w.size();
  TG_CHECK(n > 0, value, "[adamw_step] there are no tensors. Pass at least one.");
  const Inputs lists[] = {x.w, x.m, x.v, x.grad};
  std::vector<Tensor> in;
  in.reserve(4 * n + 1);
  for (size_t role = 0; role < 4; ++role) {
    TG_CHECK(lists[role].size() == n, value, "[adamw_step] there are {} {}s and {} weights. Pass one for each weight.",
             lists[role].size(), kRoles[role], n);
    for (size_t i = 0; i < n; ++i) {
      const Tensor& t = in.emplace_back(lists[role][i]);
      TG_CHECK(t, value, "[adamw_step] {} {} is an empty tensor. Pass a tensor that has a value.", kRoles[role], i);
      TG_CHECK(
          t.device() == x.w[0].device(), device,
          "[adamw_step] {} {}, {}, lies on {}, weight 0 on {}. A step is of one device: make one for each, or move "
          "tensors with .to(device).",
          kRoles[role], i, t, t.device(), x.w[0].device());
      const auto& producer = t.value()->producer;
      TG_CHECK(role == 3 || !producer || !producer->tape(), state,
               "[adamw_step] {} {}, {}, was computed on the tape. Only leaves are updated: pass one, or detach().",
               kRoles[role], i, t);
    }
  }
  check_distinct({in.data(), 3 * n}, n);
  if (!norm) return in;
  TG_CHECK(norm.device() == x.w[0].device(), device,
           "[adamw_step] the norm, {}, lies on {}, weight 0 on {}. Pass global_norm() of these gradients.", norm,
           norm.device(), x.w[0].device());
  in.push_back(norm);
  return in;
}
}  // namespace

Layouts op::GlobalNorm::infer(Inputs in) const {
  DType wide = DType::f32;
  for (const Tensor& x : in) {
    check::computes(kName, x);
    if (x.dtype() == DType::f64) wide = DType::f64;
  }
  return {Layout::contiguous({}, wide, in[0].device())};
}
Tensor global_norm(Inputs grads) {
  TG_CHECK(!grads.empty(), value, "[global_norm] there are no tensors. Pass at least one.");
  return emit(stateless<op::GlobalNorm>(), grads)[0];
}

Layouts op::AdamWStep::infer(Inputs in) const {
  const size_t n = tensors();
  for (size_t i = 0; i < n; ++i) {
    const Tensor& w = in[i];
    TG_CHECK(w.dtype() == DType::f64 || w.dtype() == DType::f32, dtype,
             "[adamw_step] weight {} is {}: its small steps would be rounded away. Keep weights in f32 or f64.", i, w);
    for (size_t role = 1; role < 4; ++role) {
      const Tensor& x = in[role * n + i];
      TG_CHECK(x.shape() == w.shape(), shape, "[adamw_step] {} {} is {}, the weight is {}. Their shapes must be equal.",
               kRoles[role], i, x, w);
      TG_CHECK(x.dtype() == w.dtype(), dtype,
               "[adamw_step] {} {} is {}, the weight is {}. Their dtypes must be equal: use .to(dtype).", kRoles[role],
               i, x, w);
    }
  }
  if (in.size() > 4 * n)
    TG_CHECK(in[4 * n].ndim() == 0 && (in[4 * n].dtype() == DType::f32 || in[4 * n].dtype() == DType::f64), shape,
             "[adamw_step] the norm is {}. It must be () f32 or f64, as global_norm() makes it.", in[4 * n]);
  Layouts l;
  for (size_t i = 0; i < 3 * n; ++i) l.emplace_back(contiguous_like(in[i]));
  return l;
}
OpPtr op::AdamWStep::for_next_step(const Rng&) const {
  return make_ref<op::AdamWStep>(o, weight_decay, count->lr, ++count->t, max_norm, count);
}
void adamw_step(const AdamWTensors& x, const AdamWOptions& o, double lr, int64_t t, const Tensor& norm, double max_norm,
                Ref<OptimizerClock> count) {
  TG_CHECK(
      count || !detail::tracing(), state,
      "[adamw_step] every replay of the compiled function would be step {} with lr {}. Use AdamW, or pass a count.", t,
      lr);
  const std::vector<Tensor> in = checked_inputs(x, norm);
  check_numbers(o, lr, t);
  TG_CHECK(norm ? max_norm > 0 : max_norm == 0, value,
           "[adamw_step] max_norm is {}, and a norm was {}given. Pass both, with max_norm above 0, or neither.",
           max_norm, norm ? "" : "not ");
  emit_update(make_ref<op::AdamWStep>(o, decays_of(x, o), lr, t, max_norm, std::move(count)), in, 3 * x.w.size());
}
}  // namespace tg
