#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/engine/trace.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/training/optim_math.h>
#include <tapegrad/ops/training/update.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace tg {
namespace {
using Roles = std::span<const std::string_view>;  // inputs of an entry: updated, then gradient
constexpr std::string_view kGradient = "gradient";
constexpr std::array<std::string_view, 4> kAdamW = {"weight", "first moment", "second moment", kGradient};
constexpr std::array<std::string_view, 5> kAdamWProduct = {
    "weight", "first moment", "second moment", "left factor of the gradient", "right factor of the gradient"};
constexpr std::array<std::string_view, 3> kMomentum = {"weight", "momentum buffer", kGradient};
constexpr std::array<std::string_view, 1> kLow = {"low bits"};
constexpr std::array<std::string_view, 2> kPlain = {"weight", kGradient};
constexpr size_t kMoments = 3;  // w, m and v
Roles roles_of(const SgdOptions& o) { return o.momentum > 0 ? Roles(kMomentum) : Roles(kPlain); }

bool is_rate(double x) { return x >= 0 && std::isfinite(x); }
bool is_beta(double x) { return x >= 0 && x < 1; }
void check_step(std::string_view op, bool count, double lr, int64_t t, bool skip, const Tensor& norm) {
  if (!count && detail::tracing())
    detail::tracing()->refuse(fmt::format(
        "[{}] every replay of the compiled function would be step {} with lr {}. Use an Optimizer, or pass a count.",
        op, t, lr));
  TG_CHECK(is_rate(lr), value, "[{}] lr is {}. It must be 0 or more, and finite.", op, lr);
  TG_CHECK(t >= 1, value, "[{}] the step's number is {}. Steps count from 1.", op, t);
  TG_CHECK(!skip || norm, value,
           "[{}] skip_non_finite is set, and no norm was given. A step is skipped by its norm: pass it, with a "
           "max_norm of infinity to clip nothing.",
           op);
}
// set(x) fills unset values.
template <class Overrides, class F>
std::vector<Overrides> overrides_of(std::string_view op, std::span<const Overrides> own, Inputs w, F set) {
  TG_CHECK(own.empty() || own.size() == w.size(), value,
           "[{}] there are {} overrides and {} weights. Pass one for each weight, or none for those of the options.",
           op, own.size(), w.size());
  std::vector<Overrides> r(own.begin(), own.end());
  r.resize(w.size());
  for (size_t i = 0; i < r.size(); ++i) {
    set(r[i]);
    TG_CHECK(is_rate(*r[i].weight_decay), value,
             "[{}] weight_decay of weight {}, {}, is {}. It must be 0 or more, and finite.", op, i, w[i],
             *r[i].weight_decay);
    TG_CHECK(is_rate(r[i].lr_scale), value, "[{}] lr_scale of weight {}, {}, is {}. It must be 0 or more, and finite.",
             op, i, w[i], r[i].lr_scale);
  }
  return r;
}
// Checks the updated tensors, n per role.
void check_distinct(std::string_view op, Roles roles, Inputs updated, size_t n) {
  std::vector<std::pair<uint64_t, size_t>> ids;
  ids.reserve(updated.size());
  for (size_t i = 0; i < updated.size(); ++i) ids.emplace_back(updated[i].id(), i);
  std::ranges::sort(ids);
  const auto same = std::ranges::adjacent_find(ids, {}, &std::pair<uint64_t, size_t>::first);
  if (same == ids.end()) return;
  const size_t a = same->second, b = std::next(same)->second;
  detail::fail(Error::Kind::value, fmt::format("[{}] {} {} and {} {} are the same tensor, {}. Each needs its own.", op,
                                               roles[a / n], a % n, roles[b / n], b % n, updated[a]));
}
// Checks all except shapes and dtypes. A list per role; the first `updated` roles are updated.
std::vector<Tensor> checked_inputs(std::string_view op, Roles roles, size_t updated, std::span<const Inputs> lists,
                                   const Tensor& norm, double max_norm) {
  const Inputs weights = lists[0];
  const size_t n = weights.size();
  TG_CHECK(n > 0, value, "[{}] there are no tensors. Pass at least one.", op);
  std::vector<Tensor> in;
  in.reserve(roles.size() * n + 1);
  for (size_t role = 0; role < roles.size(); ++role) {
    TG_CHECK(lists[role].size() == n, value, "[{}] there are {} {}s and {} weights. Pass one for each weight.", op,
             lists[role].size(), roles[role], n);
    for (size_t i = 0; i < n; ++i) {
      const Tensor& t = in.emplace_back(lists[role][i]);
      TG_CHECK(t, value, "[{}] {} {} is an empty tensor{}", op, roles[role], i, detail::about_empty());
      TG_CHECK(t.device() == weights[0].device(), device,
               "[{}] {} {}, {}, is on {}, weight 0 on {}. A step runs on one device: call it for each device, or move "
               "tensors with .to(device).",
               op, roles[role], i, t, t.device(), weights[0].device());
      TG_CHECK(role >= updated || !detail::on_tape(t), state,
               "[{}] {} {}, {}, was computed on the tape. Only leaves are updated: pass one, or detach().", op,
               roles[role], i, t);
    }
  }
  check_distinct(op, roles, {in.data(), updated * n}, n);
  TG_CHECK(norm ? max_norm > 0 : max_norm == 0, value,
           "[{}] max_norm is {}, and a norm was {}given. Pass both, with max_norm above 0, or neither.", op, max_norm,
           norm ? "" : "not ");
  if (!norm) return in;
  TG_CHECK(norm.device() == weights[0].device(), device,
           "[{}] the norm, {}, is on {}, weight 0 on {}. Pass global_norm() of these gradients.", op, norm,
           norm.device(), weights[0].device());
  in.push_back(norm);
  return in;
}
std::vector<int64_t> firsts_of(std::string_view op, std::span<const int64_t> first, Inputs w) {
  TG_CHECK(first.empty() || first.size() == w.size(), value,
           "[{}] there are {} first elements of parts and {} weights. Pass one for each weight, or none.", op,
           first.size(), w.size());
  return {first.begin(), first.end()};
}
void check_norm(std::string_view op, Inputs rest) {
  for (const Tensor& norm : rest)
    TG_CHECK(norm.ndim() == 0 && (norm.dtype() == DType::f32 || norm.dtype() == DType::f64), shape,
             "[{}] the norm is {}. It must be () f32 or f64, as global_norm() makes it.", op, norm);
}
// Checks a step of part of weight i, from element `first` on.
void check_part(std::string_view op, std::string_view role, size_t i, const Tensor& w, int64_t first, const Tensor& x) {
  TG_CHECK(x.ndim() == 1 && first >= 0 && x.numel() <= w.numel() - first, shape,
           "[{}] {} {} is {}, for the weight {} from element {} on. It must be (n), and the weight must have these n "
           "elements.",
           op, role, i, x, w, first);
}
// Checks n entries; returns the layouts of the updated tensors. Low bits of `split` weights and copies of `copied` ones
// precede the gradients.
Layouts updates(std::string_view op, Roles roles, size_t updated, size_t n, Inputs in,
                std::span<const uint32_t> copied = {}, std::span<const int64_t> first = {},
                std::span<const uint32_t> split = {}) {
  const Inputs low = in.subspan(std::min(updated * n, in.size())).first(split.size());
  const Inputs copies = in.subspan(std::min(updated * n + split.size(), in.size())).first(copied.size());
  const size_t inserted = low.size() + copies.size();
  for (size_t k = 0; k < low.size(); ++k)
    TG_CHECK(
        low[k].dtype() == DType::u16 && low[k].device() == in[0].device() && low[k].shape() == in[split[k]].shape() &&
            low[k].is_contiguous() && in[split[k]].dtype() == DType::bf16 && in[split[k]].is_contiguous(),
        dtype,
        "[{}] the low bits of weight {} are {}, the weight is {}. They must be contiguous u16 and bf16, on one device.",
        op, split[k], low[k], in[split[k]]);
  for (size_t i = 0; i < n; ++i) {
    const Tensor& w = in[i];
    const DType wide = std::ranges::binary_search(split, i) ? DType::f32 : w.dtype();
    TG_CHECK(wide == DType::f64 || wide == DType::f32, dtype,
             "[{}] weight {} is {}: small steps would be rounded away. Keep weights in f32, f64 or split.", op, i, w);
    for (size_t role = 1; role < roles.size(); ++role) {
      const Tensor& x = in[role * n + i + (role < updated ? 0 : inserted)];
      if (!first.empty()) check_part(op, roles[role], i, w, first[i], x);
      const Tensor& like = first.empty() ? w : in[(roles.size() - 1) * n + inserted + i];
      TG_CHECK(x.shape() == like.shape(), shape, "[{}] {} {} is {}, the {} is {}. Their shapes must be equal.", op,
               roles[role], i, x, first.empty() ? "weight" : "gradient", like);
      const bool narrow = (updated == kMoments || role == updated) && wide == DType::f32 && x.dtype() == DType::bf16;
      TG_CHECK(x.dtype() == wide || narrow, dtype,
               "[{}] {} {} is {}, the weight is {}. Their dtypes must be equal, except for bf16 gradients and moments "
               "of f32 or split weights: use .to(dtype).",
               op, roles[role], i, x, w);
      TG_CHECK(updated != kMoments || role != 2 || x.dtype() == in[n + i].dtype(), dtype,
               "[{}] second moment {} is {}, the first {}. Both must have one dtype: use .to(dtype).", op, i, x,
               in[n + i]);
    }
  }
  for (size_t k = 0; k < copies.size(); ++k)
    TG_CHECK(copies[k].dtype() == DType::bf16 && copies[k].shape() == in[copied[k]].shape(), internal,
             "[{}] the copy of weight {}, {}, is {}.", op, copied[k], in[copied[k]], copies[k]);
  check_norm(op, in.subspan(std::min(roles.size() * n + inserted, in.size())));
  Layouts l;
  for (size_t i = 0; i < updated * n + inserted; ++i) l.emplace_back(contiguous_like(in[i]));
  return l;
}
}  // namespace

Layouts op::SquareSums::infer(Inputs in) const {
  int64_t segments = 0;
  for (const Tensor& x : in) {
    check::computes(kName, x);
    segments += (x.numel() + kSegment - 1) / kSegment;
  }
  return {contiguous_like(in[0], {segments}, DType::f64)};
}
Tensor detail::square_sums(Inputs x) {
  TG_CHECK(!x.empty(), value, "[square_sums] there are no tensors. Pass at least one.");
  return emit(stateless<op::SquareSums>(), x)[0];
}
Layouts op::NormOfSquareSums::infer(Inputs in) const {
  TG_CHECK(in[0].ndim() == 1 && in[0].dtype() == DType::f64, shape, "[{}] the sums are {}. They must be (n) f64.",
           kName, in[0]);
  TG_CHECK(dtype == DType::f32 || dtype == DType::f64, dtype, "[{}] the dtype is {}. It must be f32 or f64.", kName,
           dtype);
  return {contiguous_like(in[0], {}, dtype)};
}
Tensor detail::norm_of_square_sums(const Tensor& sums, DType dtype) {
  return emit1(make_ref<op::NormOfSquareSums>(dtype), {sums});
}
Tensor global_norm(Inputs grads) {
  TG_CHECK(!grads.empty(), value, "[global_norm] there are no tensors. Pass at least one.");
  bool wide = false;
  for (const Tensor& g : grads) check::computes("global_norm", g), wide |= g && g.dtype() == DType::f64;
  return detail::norm_of_square_sums(detail::square_sums(grads), wide ? DType::f64 : DType::f32);
}

op::StepParts::StepParts(std::span<const int64_t> first, Places copied, Places split, Bufs in, Bufs out)
    : in_(in.begin(), in.end()), out_(out.begin(), out.end()) {
  const auto cut = [&](size_t k, Buf& b) {
    Layout& l = layouts_.emplace_back(Layout::contiguous(in[out.size() + k].shape(), b.dtype(), b.layout->device));
    l.offset = b.layout->offset + first[k];
    b.layout = &l;
  };
  if (first.empty()) return;
  for (size_t k = 0; k < first.size(); ++k) cut(k, out_[k]), in_[k] = out_[k];
  size_t k = out.size() - copied.size() - split.size();
  for (const Places& list : {split, copied})
    for (const uint32_t i : list) cut(i, out_[k++]);
}

Layouts op::AdamWStep::infer(Inputs in) const {
  return updates(kName, kAdamW, kMoments, tensors(), in, copied, first, split);
}
namespace {
// Overrides per tensor, all set; streams for bf16 moments.
std::vector<AdamWOverrides> adamw_numbers(std::string_view op, std::span<const AdamWOverrides> each, Inputs w, Inputs m,
                                          const AdamWOptions& o) {
  TG_CHECK(o.eps > 0 && std::isfinite(o.eps), value, "[{}] eps is {}. It must be above 0, and finite.", op, o.eps);
  auto all = overrides_of(op, each, w, [&](AdamWOverrides& own) {
    own.weight_decay = own.weight_decay.value_or(o.weight_decay);
    own.beta1 = own.beta1.value_or(o.beta1), own.beta2 = own.beta2.value_or(o.beta2);
    TG_CHECK(is_beta(*own.beta1) && is_beta(*own.beta2), value,
             "[{}] beta1 is {}, beta2 is {}. Both must be in [0, 1).", op, *own.beta1, *own.beta2);
  });
  for (size_t i = 0; i < all.size(); ++i)
    all[i].stream = m[i].dtype() == DType::bf16 ? std::optional(all[i].stream.value_or(i)) : std::nullopt;
  return all;
}
}  // namespace
void adamw_step(const AdamWTensors& x, const AdamWOptions& o, double lr, int64_t t, const Tensor& norm, double max_norm,
                Ref<OptimizerClock> count) {
  constexpr auto kName = op::AdamWStep::kName;
  check_step(kName, bool(count), lr, t, o.skip_non_finite, norm);
  std::vector<Tensor> in = checked_inputs(kName, kAdamW, kMoments, std::array{x.w, x.m, x.v, x.grad}, norm, max_norm);
  auto each = adamw_numbers(kName, x.each, x.w, x.m, o);
  TG_CHECK(x.low.empty() || x.low.size() == x.w.size(), value,
           "[{}] there are low bits for {} of {} weights. Pass all or none.", kName, x.low.size(), x.w.size());
  std::vector<uint32_t> split;
  std::vector<Tensor> low;
  for (size_t i = 0; i < x.low.size(); ++i)
    if (x.low[i]) split.push_back(uint32_t(i)), low.push_back(x.low[i]);
  check_distinct(kName, kLow, low, std::max<size_t>(low.size(), 1));
  in.insert(in.begin() + ptrdiff_t(kMoments * x.w.size()), low.begin(), low.end());
  auto step = make_ref<op::AdamWStep>(op::AdamWAttributes{
      o, std::move(each), {}, firsts_of(kName, x.first, x.w), lr, max_norm, t, std::move(count), true, split});
  detail::emit_with_copies(std::move(step), x.w, std::move(in), kMoments * x.w.size() + low.size());
}

SplitTensor detail::split_weight(const Tensor& w) {
  TG_CHECK(w.dtype() == DType::f32, dtype, "[split_weight] the weight is {}. It must be f32: use .to(dtype).", w);
  const auto like = [&](DType t) { return contiguous_like(w, t); };
  if (detail::running_dry()) return {empty(like(DType::bf16)), empty(like(DType::u16))};
  const auto x = w.to_vector<float>();
  std::vector<bf16> high(x.size());
  std::vector<uint16_t> low(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    TG_CHECK(!op::beyond_split(x[i]), value,
             "[split_weight] element {} of {} is {}, and the nearest bf16 infinite. Train without split weights.", i, w,
             x[i]);
    const op::SplitWeight s = op::split(x[i]);
    high[i] = s.high, low[i] = s.low;
  }
  return {tensor(high, w.shape(), w.device()), tensor(low, w.shape(), w.device())};
}
Tensor detail::join_weight(const SplitTensor& s) {
  const auto high = s.high.to_vector<bf16>();
  const auto low = s.low.to_vector<uint16_t>();
  std::vector<float> x(high.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = op::join(high[i], low[i]);
  return tensor(x, s.high.shape());
}

double op::AdamWProductStep::multiply_adds(Bufs in, Bufs) const {
  return double(in[3].numel()) * double(in[4].numel() / std::max<int64_t>(in[4].size(0), 1));
}
Layouts op::AdamWProductStep::infer(Inputs in) const {
  const Tensor &w = in[0], &a = in[3], &b = in[4];
  Layouts l = updates(kName, Roles(kAdamWProduct).first(kMoments), kMoments, 1, in.first(kMoments));
  for (const Tensor* x : {&a, &b})
    TG_CHECK(x->ndim() == 2 && x->dtype() == w.dtype(), shape,
             "[adamw_product_step] a factor of the gradient is {}, the weight is {}. Factors must be matrices of the "
             "weight's dtype.",
             *x, w);
  TG_CHECK(a.size(0) == b.size(0) && detail::checked_numel(kName, {a.size(1), b.size(1)}) == w.numel(), shape,
           "[adamw_product_step] the factors are {} and {}, the weight is {}. They must be (R, rows) and (R, columns), "
           "and rows times columns must be the weight's number of elements ({}).",
           a, b, w, w.numel());
  check_norm(kName, in.subspan(kAdamWProduct.size()));
  return l;
}
void detail::adamw_product_step(const Tensor& w, const Tensor& m, const Tensor& v, const GradientProduct& grad,
                                const AdamWOptions& o, double lr, int64_t t, const AdamWOverrides& own,
                                const Tensor& norm, double max_norm, Ref<OptimizerClock> count, bool counts) {
  constexpr auto kName = op::AdamWProductStep::kName;
  check_step(kName, bool(count), lr, t, o.skip_non_finite, norm);
  const auto one = [](const Tensor& x) { return Inputs(&x, 1); };
  const std::array lists{one(w), one(m), one(v), one(grad.a), one(grad.b)};
  const std::vector<Tensor> in = checked_inputs(kName, kAdamWProduct, kMoments, lists, norm, max_norm);
  detail::emit_update(
      make_ref<op::AdamWProductStep>(op::AdamWAttributes{
          o, adamw_numbers(kName, {&own, 1}, one(w), one(m), o), {}, {}, lr, max_norm, t, std::move(count), counts}),
      in, kMoments);
}

Layouts op::SgdStep::infer(Inputs in) const {
  return updates(kName, roles_of(o), updated(), tensors(), in, copied, first);
}
void sgd_step(const SgdTensors& x, const SgdOptions& o, double lr, int64_t t, const Tensor& norm, double max_norm,
              Ref<OptimizerClock> count, bool counts) {
  constexpr auto kName = op::SgdStep::kName;
  check_step(kName, bool(count), lr, t, o.skip_non_finite, norm);
  TG_CHECK(is_beta(o.momentum), value, "[sgd_step] momentum is {}. It must be in [0, 1).", o.momentum);
  TG_CHECK(is_beta(o.dampening), value, "[sgd_step] dampening is {}. It must be in [0, 1).", o.dampening);
  TG_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0), value,
           "[sgd_step] nesterov with momentum {} and dampening {}. It needs momentum above 0 and dampening 0.",
           o.momentum, o.dampening);
  TG_CHECK(o.momentum > 0 || x.momentum.empty(), value,
           "[sgd_step] momentum is 0, and there are {} momentum buffers. They would have no effect: pass none.",
           x.momentum.size());
  const std::array with{x.w, x.momentum, x.grad};
  const std::array without{x.w, x.grad};
  std::vector<Tensor> in = checked_inputs(kName, roles_of(o), o.momentum > 0 ? 2 : 1,
                                          o.momentum > 0 ? std::span<const Inputs>(with) : without, norm, max_norm);
  auto each = overrides_of(kName, x.each, x.w,
                           [&](SgdOverrides& own) { own.weight_decay = own.weight_decay.value_or(o.weight_decay); });
  auto step = make_ref<op::SgdStep>(op::SgdStep::StepAttributes{
      o, std::move(each), {}, firsts_of(kName, x.first, x.w), lr, max_norm, t, std::move(count), counts});
  const size_t updated = step->updated() * x.w.size();
  detail::emit_with_copies(std::move(step), x.w, std::move(in), updated);
}
}  // namespace tg
