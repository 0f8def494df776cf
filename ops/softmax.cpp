#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/softmax.h>

namespace tg {
namespace {
template <class OpT> Tensor along(const Tensor& x, int64_t dim) {
  const auto d = int64_t(check::dim(OpT::kName, x, dim)), last = int64_t(x.ndim()) - 1;
  if (d == last) return emit1(stateless<OpT>(), {x});
  return transpose(emit1(stateless<OpT>(), {transpose(x, d, last)}), d, last);
}
}  // namespace

template <bool kLog> Layouts op::SoftmaxOf<kLog>::infer(Inputs in) const {
  check::ndim_at_least(kName, in[0], 1);
  check::computes(kName, in[0]);
  return {contiguous_like(in[0])};
}
template <bool kLog> Tensors op::SoftmaxOf<kLog>::vjp(const Vjp& v) const {
  return {emit1(stateless<op::SoftmaxGradOf<kLog>>(), {v.out(0), v.grad()})};
}
template <bool kLog> Tensors op::SoftmaxGradOf<kLog>::compose(Inputs in) const {
  const Tensor y = widened(in[0]), dy = widened(in[1]);
  return {(kLog ? dy - exp(y) * row_sum(dy) : y * (dy - row_sum(dy * y))).to(in[0].dtype())};
}
template struct op::SoftmaxOf<false>;
template struct op::SoftmaxOf<true>;
template struct op::SoftmaxGradOf<false>;
template struct op::SoftmaxGradOf<true>;

Tensor softmax(const Tensor& x, int64_t dim) { return along<op::Softmax>(x, dim); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return along<op::LogSoftmax>(x, dim); }
}  // namespace tg
