#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/softmax.h>

namespace tg {
namespace {
Layouts checked_like(std::string_view op, const Tensor& x) {
  check::ndim_at_least(op, x, 1);
  check::computes(op, x);
  return {contiguous_like(x)};
}

template <class OpT> Tensor along(const Tensor& x, int64_t dim) {
  const auto d = int64_t(check::dim(OpT::kName, x, dim)), last = int64_t(x.ndim()) - 1;
  if (d == last) return emit1(stateless<OpT>(), {x});
  return transpose(emit1(stateless<OpT>(), {transpose(x, d, last)}), d, last);
}
}  // namespace

Layouts op::Softmax::infer(Inputs in) const { return checked_like(kName, in[0]); }
Tensors op::Softmax::vjp(const Vjp& v) const { return {emit1(stateless<op::SoftmaxGrad>(), {v.out(0), v.grad()})}; }
Tensors op::SoftmaxGrad::compose(Inputs in) const {
  const Tensor y = widened(in[0]), dy = widened(in[1]);
  return {(y * (dy - row_sum(dy * y))).to(in[0].dtype())};
}
Layouts op::LogSoftmax::infer(Inputs in) const { return checked_like(kName, in[0]); }
Tensors op::LogSoftmax::vjp(const Vjp& v) const {
  return {emit1(stateless<op::LogSoftmaxGrad>(), {v.out(0), v.grad()})};
}
Tensors op::LogSoftmaxGrad::compose(Inputs in) const {
  const Tensor y = widened(in[0]), dy = widened(in[1]);
  return {(dy - exp(y) * row_sum(dy)).to(in[0].dtype())};
}

Tensor softmax(const Tensor& x, int64_t dim) { return along<op::Softmax>(x, dim); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return along<op::LogSoftmax>(x, dim); }
}  // namespace tg
