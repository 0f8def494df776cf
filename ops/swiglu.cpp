#include <tapegrad/core/check.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/swiglu.h>

namespace tg {
Layouts op::Swiglu::infer(Inputs in) const {
  const Tensor& x = in[0];
  check::ndim_at_least(kName, x, 1);
  check::computes(kName, x);
  Shape s = x.shape();
  TG_CHECK(s.back() % 2 == 0, shape,
           "[swiglu] {} has rows of {} elements. The first half of a row is the gate of the second: the last size must "
           "be even.",
           x, s.back());
  s.back() /= 2;
  return {contiguous_like(x, s)};
}
Tensors op::Swiglu::vjp(const Vjp& v) const { return {emit1(stateless<op::SwigluGrad>(), {v.in(0), v.grad()})}; }

Tensors op::SwigluGrad::compose(Inputs in) const {
  const int64_t f = in[1].shape().back();
  const Tensors x = split(in[0], {f, f}, -1);  // gate, value
  const Tensor dgate = emit1(stateless<op::UnaryGrad<op::Silu>>(), {x[0], in[1] * x[1]});
  return {concat({dgate, in[1] * silu(x[0])}, -1)};
}

Tensor swiglu(const Tensor& x) { return emit1(stateless<op::Swiglu>(), {x}); }
}  // namespace tg
