#include <tapegrad/ops/check.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

namespace tg {
namespace {
Shape reduced(const Shape& s, uint8_t dims, bool keep) {
  Shape r;
  for (size_t i = 0; i < s.size(); ++i)
    if (!(dims >> i & 1))
      r.push_back(s[i]);
    else if (keep)
      r.push_back(1);
  return r;
}
uint8_t mask_of(std::string_view op, const Tensor& x, const Dims& dims) {
  uint8_t mask = 0;
  for (int64_t d : dims) {
    const auto one = uint8_t(1u << normal_dim(op, d, x.shape()));
    TG_CHECK(!(mask & one), value, "[{}] dimension {} is named twice in {}. Name each once.", op, d, dims);
    mask |= one;
  }
  return mask;
}
uint8_t all_of(const Tensor& x) { return uint8_t((1u << x.ndim()) - 1); }
}  // namespace

Layouts Sum::infer(Inputs in) const {
  if (!is_index(in[0].dtype())) check::computes(kName, in[0]);
  return {Layout::contiguous(reduced(in[0].shape(), dims, keep), in[0].dtype(), in[0].device())};
}
Tensors Sum::vjp(const Vjp& v) const {
  const Shape& s = v.in_shape(0);
  return {expand(reshape(v.grad(), reduced(s, dims, true)), s)};
}
Tensor sum(const Tensor& x) { return emit1(make<Sum>(all_of(x), false), {x}); }
Tensor sum(const Tensor& x, const Dims& dims, ReduceOptions o) {
  return emit1(make<Sum>(mask_of("sum", x, dims), o.keepdim), {x});
}
namespace {
Tensor mean_of(const Tensor& x, uint8_t mask, bool keep) {
  check::computes("mean", x);
  int64_t n = 1;
  for (size_t i = 0; i < x.ndim(); ++i)
    if (mask >> i & 1) n *= x.shape()[i];
  TG_CHECK(n > 0, value, "[mean] {} has no elements to average over. Use sum(), which is 0.", x);
  return emit1(make<Sum>(mask, keep), {x}) / double(n);
}
}  // namespace
Tensor mean(const Tensor& x) { return mean_of(x, all_of(x), false); }
Tensor mean(const Tensor& x, const Dims& dims, ReduceOptions o) {
  return mean_of(x, mask_of("mean", x, dims), o.keepdim);
}
Tensor sum_to(const Tensor& x, const Shape& to) {
  if (x.shape() == to) return x;
  const size_t skip = x.ndim() - to.size();
  uint8_t mask = 0;
  for (size_t i = 0; i < x.ndim(); ++i)
    if (i < skip || (to[i - skip] == 1 && x.shape()[i] != 1)) mask |= uint8_t(1u << i);
  return reshape(emit1(make<Sum>(mask, true), {x}), to);
}
}  // namespace tg
