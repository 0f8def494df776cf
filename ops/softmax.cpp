#include <tapegrad/ops/check.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/softmax.h>

namespace tg {
Layouts Softmax::infer(Inputs in) const {
  check::ndim_at_least(kName, in[0], 1);
  check::computes(kName, in[0]);
  return {Layout::contiguous(in[0].shape(), in[0].dtype(), in[0].device())};
}
Tensors Softmax::vjp(const Vjp& v) const { return {emit1(stateless<SoftmaxGrad>(), {v.out(0), v.grad()})}; }
Layouts SoftmaxGrad::infer(Inputs in) const {
  return {Layout::contiguous(in[0].shape(), in[0].dtype(), in[0].device())};
}

Tensor softmax(const Tensor& x, int64_t dim) {
  TG_CHECK(x, value, "[softmax] the input is an empty tensor. Pass a tensor that has a value.");
  check::ndim_at_least("softmax", x, 1);
  const auto d = int64_t(normal_dim("softmax", dim, x.shape())), last = int64_t(x.ndim()) - 1;
  if (d == last) return emit1(stateless<Softmax>(), {x});
  return transpose(emit1(stateless<Softmax>(), {transpose(x, d, last)}), d, last);
}
}  // namespace tg
