#include <tapegrad/ops/check.h>
#include <tapegrad/ops/loss.h>

namespace tg {
Layouts CrossEntropy::infer(Inputs in) const {
  const Tensor &logits = in[0], &targets = in[1];
  check::ndim_at_least(kName, logits, 1);
  check::computes(kName, logits);
  check::index(kName, targets);
  const Shape& s = logits.shape();
  const Shape rows(s.begin(), s.end() - 1);
  TG_CHECK(
      targets.shape() == rows, shape,
      "[cross_entropy] logits are {}, targets {}. There must be one target per row of logits: shape {}. Did you pass "
      "one-hot targets?",
      logits, targets, rows);
  TG_CHECK(o.label_smoothing >= 0 && o.label_smoothing < 1, value,
           "[cross_entropy] label_smoothing is {}. It must be in [0, 1); 0 is none.", o.label_smoothing);
  const DType t = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return {Layout::contiguous(o.reduction == Reduction::none ? rows : Shape(), t, logits.device()),
          Layout::contiguous(rows, t, logits.device())};
}
Tensors CrossEntropy::vjp(const Vjp& v) const {
  return {emit1(make<CrossEntropyGrad>(o), {v.in(0), v.in(1), v.out(1), v.grad()}), Tensor()};
}
Layouts CrossEntropyGrad::infer(Inputs in) const {
  return {Layout::contiguous(in[0].shape(), in[0].dtype(), in[0].device())};
}
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions o) {
  return emit1(make<CrossEntropy>(o), {logits, targets});
}
}  // namespace tg
