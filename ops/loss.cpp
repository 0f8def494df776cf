#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/composed.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/softmax.h>

#include <algorithm>
#include <cmath>

namespace tg {
Layouts op::CrossEntropy::infer(Inputs in) const {
  const Tensor &logits = in[0], &targets = in[1];
  check::ndim_at_least(kName, logits, 1);
  check::computes(kName, logits);
  check::index(kName, targets);
  const Shape& s = logits.shape();
  const Shape rows = s.without_last();
  Shape second = s;  // drops classes in dimension 1, as in PyTorch
  if (s.size() > 2) second.erase(1);
  TG_CHECK(targets.shape() == rows, shape,
           "[cross_entropy] logits are {}, targets {}. There must be one target per row of logits: shape {}. {}",
           logits, targets, rows,
           s.size() > 2 && targets.shape() == second
               ? "Classes are the last dimension: pass transpose(logits, 1, 2), or permute() more dimensions."
               : "Did you pass one-hot targets?");
  TG_CHECK(o.label_smoothing >= 0 && o.label_smoothing < 1, value,
           "[cross_entropy] label_smoothing is {}. It must be in [0, 1); 0 is none.", o.label_smoothing);
  const DType t = detail::dtype_of_sums(logits);
  return {contiguous_like(logits, o.reduction == Reduction::none ? rows : Shape(), t),
          contiguous_like(logits, rows, t)};
}
Tensors op::CrossEntropy::vjp(const Vjp& v) const {
  // push_back: an initializer list would keep the logits alive.
  std::vector<Tensor> in;
  in.push_back(v.donate_in(0));
  for (const Tensor& t : {v.in(1), v.out(1), v.grad()}) in.push_back(t);
  return {std::move(detail::emit_donating(make_ref<op::CrossEntropyGrad>(o), std::move(in))[0]), Tensor()};
}
// w (softmax(x) - (1 - s) onehot - s / V), w: the row's loss gradient.
Tensors op::CrossEntropyGrad::compose(Inputs in) const {
  const Tensor x = widened(in[0]), dloss = in[3];
  const Shape& rows = in[1].shape();
  Tensor targets = in[1].to(DType::i64), w = expand(dloss, rows);
  if (o.reduction == Reduction::mean && !o.ignore_index) w = w / double(rows.product());
  if (o.ignore_index) {  // ignored rows get weight 0, target class 0
    const Tensor kept = detail::differs_from(targets, *o.ignore_index), one = kept.to(x.dtype());
    targets = where(kept, targets, 0.0);
    w = w * (o.reduction == Reduction::mean ? one / sum(one) : one);
  }
  const Tensor one_hot = scatter_add(zeros(x.shape(), x.dtype(), x.device()), -1, unsqueeze(targets, -1),
                                     ones(rows.followed_by(1), x.dtype(), x.device()));
  const double s = o.label_smoothing, even = s / double(std::max<int64_t>(1, x.shape().back()));
  return {(unsqueeze(w, -1) * (softmax(x) - (one_hot * (1 - s) + even))).to(in[0].dtype())};
}
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions o) {
  return emit1(make_ref<op::CrossEntropy>(o), {logits, targets});
}

namespace {
std::string text_of(std::optional<int64_t> ignore_index) {
  return ignore_index ? fmt::format("{}", *ignore_index) : "not set";
}
}  // namespace
Error kernel::target_outside(int64_t target, const Dims& where, const Layout& targets, int64_t classes,
                             std::optional<int64_t> ignore_index) {
  return Error(Error::Kind::value,
               fmt::format("[cross_entropy] target {} at position {} of targets {} is no class. Targets must be in [0, "
                           "{}), the last size of the logits, or ignore_index ({}). Check the targets.",
                           target, where, targets, classes, text_of(ignore_index)));
}
Error kernel::no_rows_left(int64_t targets, std::optional<int64_t> ignore_index) {
  return Error(Error::Kind::value,
               fmt::format("[cross_entropy] no row is left for the mean: 0 of {} target(s) differ from ignore_index "
                           "({}). The mean needs one or more. Drop such batches, or use Reduction::sum, which is 0.",
                           targets, text_of(ignore_index)));
}

namespace {
void check_pair(std::string_view op, const Tensor& x, const Tensor& target, Reduction reduction) {
  check::computes(op, x);
  check::same_dtype(op, x, target);
  TG_CHECK(x.shape() == target.shape(), shape,
           "[{}] x is {}, target {}. Their shapes must be equal: there is no broadcasting. Use expand() or reshape().",
           op, x, target);
  TG_CHECK(x.numel() > 0 || reduction != Reduction::mean, value,
           "[{}] {} has no elements to average over. Pass at least one, or use Reduction::sum, which is 0.", op, x);
}
Tensor reduced_by(Reduction reduction, const Tensor& losses) {
  return reduction == Reduction::none ? losses : reduction == Reduction::sum ? sum(losses) : mean(losses);
}
}  // namespace

Layouts op::MseLoss::infer(Inputs in) const {
  const Tensor& x = in[0];
  check_pair(kName, x, in[1], reduction);
  return {contiguous_like(x, reduction == Reduction::none ? x.shape() : Shape(), detail::dtype_of_sums(x))};
}
Tensors op::MseLoss::vjp(const Vjp& v) const {  // 2 (x - target), and its negative
  const double factor = reduction == Reduction::mean ? 2 / double(v.in_shape(0).product()) : 2;
  const Tensor dx = (widened(v.in(0)) - widened(v.in(1))) * (v.grad() * factor);
  return {v.wants(0) ? dx.to(v.in_dtype(0)) : Tensor(), v.wants(1) ? (-dx).to(v.in_dtype(1)) : Tensor()};
}
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return emit1(make_ref<op::MseLoss>(reduction), {x, target});
}
Tensor bce_with_logits(const Tensor& logits, const Tensor& targets, Reduction reduction) {
  check_pair("bce_with_logits", logits, targets, reduction);
  const Tensor x = widened(logits), t = widened(targets);
  return reduced_by(reduction, t * softplus(-x) + (1.0 - t) * softplus(x));
}
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  check_pair("l1_loss", x, target, reduction);
  return reduced_by(reduction, abs(widened(x) - widened(target)));
}
Tensor huber_loss(const Tensor& x, const Tensor& target, double delta, Reduction reduction) {
  check_pair("huber_loss", x, target, reduction);
  TG_CHECK(delta > 0 && std::isfinite(delta), value,
           "[huber_loss] delta is {}. It must be positive and finite; 1 is usual.", delta);
  const Tensor d = widened(x) - widened(target), near = clamp(d, {.min = -delta, .max = delta});
  return reduced_by(reduction, near * (d - near * 0.5));
}
}  // namespace tg
