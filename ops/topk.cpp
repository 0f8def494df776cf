#include <tapegrad/core/check.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/topk.h>

namespace tg {
Layouts op::ArgMax::infer(Inputs in) const {
  const Tensor& x = in[0];
  check::number(kName, x);
  TG_CHECK(
      x.shape()[dim] > 0, shape,
      "[argmax] dimension {} of {} has no elements. The largest of nothing is undefined. Pass at least one element.",
      dim, x);
  Shape s = x.shape();
  s.erase(dim);
  return {contiguous_like(x, s, DType::i64)};
}
Tensor argmax(const Tensor& x, int64_t dim) {
  const NoGradScope off;  // an index has no gradient
  return emit1(make_ref<op::ArgMax>(check::dim("argmax", x, dim)), {x});
}

Layouts op::SelectTopK::infer(Inputs in) const {
  const Tensor& x = in[0];
  check::ndim_at_least(kName, x, 1);
  check::computes(kName, x);
  TG_CHECK(k >= 1 && k <= x.shape().back(), value,
           "[topk] k is {}, the rows of {} have {} elements. It must be in [1, {}].", k, x, x.shape().back(),
           x.shape().back());
  const Shape s = x.shape().without_last().followed_by(k);
  return {contiguous_like(x, s), contiguous_like(x, s, DType::i64)};
}
Tensors op::SelectTopK::vjp(const Vjp& v) const {
  return {scatter_add(zeros(v.in_shape(0), v.in_dtype(0), v.device()), -1, v.out(1), v.grad())};
}
TopK topk(const Tensor& x, int64_t k) {
  Tensors r = emit(make_ref<op::SelectTopK>(k), {&x, 1});
  return {std::move(r[0]), std::move(r[1])};
}

Layouts op::ArgSort::infer(Inputs in) const {
  check::ndim_at_least(kName, in[0], 1);
  check::number(kName, in[0]);
  return {contiguous_like(in[0], DType::i64)};
}
Tensor argsort(const Tensor& x, int64_t dim, SortOptions o) {
  const NoGradScope off;  // an index has no gradient
  const size_t d = check::dim("argsort", x, dim);
  const auto turned = [&](const Tensor& t) { return d + 1 == x.ndim() ? t : transpose(t, int64_t(d), -1); };
  return turned(emit1(make_ref<op::ArgSort>(o.descending), {turned(x)}));
}
Sorted sort(const Tensor& x, int64_t dim, SortOptions o) {
  Tensor indices = argsort(x, dim, o);
  return {gather(x, dim, indices), indices};
}
}  // namespace tg
