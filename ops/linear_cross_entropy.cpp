#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/composed.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/linear_cross_entropy.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>

namespace tg {
namespace {
// The weight is read and packed for each chunk: on AVX-512, chunks of 96 rows of 512 take 1.4 times as long as one, of
// 128 rows 1.15 times, of 256 rows 1.07 times.
constexpr int64_t kRows = 256, kLogits = 64 << 20;  // bytes
int64_t size_of_logit(Bufs in) { return in[0].dtype() == DType::f64 ? 8 : 4; }
// The size of the first of the fewest equal parts of at most `most`.
int64_t equal_parts(int64_t all, int64_t most) {
  const int64_t parts = std::max<int64_t>(1, (all + most - 1) / most);
  return (all + parts - 1) / parts;
}
double products(Bufs in) { return double(in[2].numel()) * double(in[1].size(0)) * double(in[0].shape().back()); }
// The weight, dequantized if it is in blocks.
Tensor whole(const Tensor& w, const std::optional<BlockFormat>& f, DType d) {
  return f ? dequantize({{{w, *f}}}, d) : w;
}
Tensor dlogits(const CrossEntropyOptions& o, const Tensor& logits, const Tensor& targets, const Tensor& lse,
               const Tensor& dloss, DType t) {
  return detail::as_rows(emit1(make_ref<op::CrossEntropyGrad>(o), {logits, targets, lse, dloss})).to(t);
}
}  // namespace

Layouts op::LinearCrossEntropy::infer(Inputs in) const {
  const Tensor &x = in[0], &w = in[1], &targets = in[2];
  check::ndim_at_least(kName, x, 1);
  check::computes(kName, x);
  if (!format) check::same_dtype(kName, x, w);
  check::index(kName, targets);
  const int64_t width = format ? BlockWeight{{{w, *format}}}.in() : w.ndim() == 2 ? w.size(1) : -1;
  TG_CHECK(x.shape().back() == width, shape,
           "[linear_cross_entropy] x is {}, weight is {}. The weight must be (classes, in), and x's last size in. Did "
           "you pass the weight transposed?",
           x, w);
  const Shape rows = x.shape().without_last();
  TG_CHECK(targets.shape() == rows, shape,
           "[linear_cross_entropy] x is {}, targets {}. There must be one target per row of x: shape {}.", x, targets,
           rows);
  TG_CHECK(o.loss.label_smoothing >= 0 && o.loss.label_smoothing < 1, value,
           "[linear_cross_entropy] label_smoothing is {}. It must be in [0, 1); 0 is none.", o.loss.label_smoothing);
  TG_CHECK(o.rows >= 0, value,
           "[linear_cross_entropy] {} rows at a time. It must be 1 or more, or 0 for a number by size.", o.rows);
  const DType t = detail::dtype_of_sums(x);
  Layouts r{contiguous_like(x, o.loss.reduction == Reduction::none ? rows : Shape(), t), contiguous_like(x, rows, t)};
  if (keeps_dx) r.emplace_back(contiguous_like(x, t));
  if (keeps_dlogits) r.emplace_back(contiguous_like(x, {rows.product(), w.shape()[0]}));
  return r;
}
double op::LinearCrossEntropy::multiply_adds(Bufs in, Bufs) const { return products(in) * (1 + keeps_dx); }
int64_t op::LinearCrossEntropy::rows_at_a_time(Bufs in) const {
  const int64_t rows = in[2].numel();
  if (o.rows > 0) return std::min(o.rows, rows);
  return equal_parts(rows, std::max(kRows, kLogits / size_of_logit(in) / std::max<int64_t>(1, in[1].size(0))));
}
int64_t op::LinearCrossEntropy::scratch_bytes(Bufs in, Bufs) const {
  if (keeps_dlogits && in[0].dtype() != DType::bf16) return 0;  // the logits are in the place of their gradient
  return rows_at_a_time(in) * in[1].size(0) * size_of_logit(in);
}
Tensors op::LinearCrossEntropy::compose(Inputs in) const {
  const Tensor weight = whole(in[1], format, in[0].dtype());
  const Tensor logits = detail::unrounded_linear(in[0], weight, precision);
  Tensors r = emit(make_ref<CrossEntropy>(o.loss), {logits, in[2]});
  CrossEntropyOptions each = o.loss;
  each.reduction = Reduction::sum;
  const Tensor d = dlogits(each, logits, in[2], r[1], ones({}, logits.dtype(), logits.device()), in[0].dtype());
  if (keeps_dx) r.emplace_back(reshape(matmul(d, weight, {.precision = precision}), in[0].shape()).to(r[0].dtype()));
  if (keeps_dlogits) r.emplace_back(d);
  return r;
}
Tensors op::LinearCrossEntropy::vjp(const Vjp& v) const {
  const Tensor x = v.in(0), targets = v.in(2), lse = v.out(1), &dloss = v.grad();
  Tensor dx, dw;
  const Tensor w = grad_enabled() ? whole(v.in(1), format, x.dtype()) : v.in(1);
  if (grad_enabled()) {
    const Tensor d = dlogits(o.loss, detail::unrounded_linear(x, w, precision), targets, lse, dloss, x.dtype());
    if (v.wants(0)) dx = reshape(matmul(d, w, {.precision = precision}), x.shape());
    if (v.wants(1)) dw = matmul(d, detail::as_rows(x), {.trans_a = true, .precision = precision});
    return {dx, dw, Tensor()};
  }
  if (v.wants(0)) {
    Tensor g = dloss;
    if (o.loss.reduction == Reduction::none) {
      g = unsqueeze(g, -1);
    } else if (o.loss.reduction == Reduction::mean) {
      g = o.loss.ignore_index ? g / sum(detail::differs_from(targets, *o.loss.ignore_index).to(g.dtype()))
                              : g / double(targets.numel());
    }
    dx = (v.out(2) * g).to(x.dtype());
  }
  if (v.wants(1)) {
    std::vector<Tensor> in{x, w, targets, lse, dloss};
    if (keeps_dlogits) in.push_back(v.out(keeps_dx ? 3 : 2));
    dw = emit1(make_ref<LinearCrossEntropyGrad>(o, precision), in);
  }
  return {dx, dw, Tensor()};
}

double op::LinearCrossEntropyGrad::multiply_adds(Bufs in, Bufs) const { return products(in) * (in.size() > 5 ? 1 : 2); }
int64_t op::LinearCrossEntropyGrad::classes_at_a_time(Bufs in) const {
  const int64_t rows = std::max<int64_t>(1, in[2].numel()), classes = in[1].size(0);
  const int64_t logits = o.rows > 0 ? std::min(o.rows, rows) * classes : kLogits / size_of_logit(in);
  return equal_parts(classes, std::max<int64_t>(kRows, logits / rows));
}
int64_t op::LinearCrossEntropyGrad::scratch_bytes(Bufs in, Bufs) const {
  return in.size() > 5 ? 0 : in[2].numel() * classes_at_a_time(in) * size_of_logit(in);
}
Tensors op::LinearCrossEntropyGrad::compose(Inputs in) const {
  const Tensor logits = detail::unrounded_linear(in[0], in[1], precision);
  const Tensor d = dlogits(o.loss, logits, in[2], in[3], in[4], in[0].dtype());
  return {matmul(d, detail::as_rows(in[0]), {.trans_a = true, .precision = precision})};
}
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, LinearCrossEntropyOptions o) {
  const bool dx = grad_enabled() && x.requires_grad();
  const bool dlogits = grad_enabled() && weight.requires_grad() && !recompute_enabled();
  const OpPtr op = make_ref<op::LinearCrossEntropy>(o, matmul_precision(), dx, dlogits);
  if (op->supports(x.device().backend)) return emit1(op, {x, weight, targets});
  return cross_entropy(detail::unrounded_linear(x, weight), targets, o.loss);
}
Tensor linear_cross_entropy(const Tensor& x, const BlockWeight& weight, const Tensor& targets,
                            LinearCrossEntropyOptions o) {
  const OpPtr op = make_ref<op::LinearCrossEntropy>(o, matmul_precision(), grad_enabled() && x.requires_grad(), false,
                                                    weight.parts.empty() ? BlockFormat::q4_0 : weight.parts[0].format);
  if (weight.parts.size() == 1 && op->supports(x.device().backend))
    return emit1(op, {x, weight.parts[0].codes.contiguous(), targets});
  return cross_entropy(detail::unrounded_block_linear(x, weight), targets, o.loss);
}
}  // namespace tg
