#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

#include <cmath>

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
int64_t count(const Shape& s, uint8_t dims) {  // elements per result
  int64_t n = 1;
  for (size_t i = 0; i < s.size(); ++i)
    if (dims >> i & 1) n *= s[i];
  return n;
}
uint8_t dims_mask(std::string_view op, const Tensor& x, const Dims& dims) {
  uint8_t mask = 0;
  for (int64_t d : dims) {
    const auto one = uint8_t(1u << check::dim(op, x, d));
    TG_CHECK(!(mask & one), value, "[{}] dimension {} is named twice in {}. Name each once.", op, d, dims);
    mask |= one;
  }
  return mask;
}
uint8_t all_of(const Tensor& x) { return uint8_t((1u << x.ndim()) - 1); }
Layouts reduce_layout(const Tensor& x, uint8_t dims, bool keep) {
  return {contiguous_like(x, reduced(x.shape(), dims, keep))};
}
}  // namespace

Layouts op::Sum::infer(Inputs in) const {
  check::number(kName, in[0]);
  return reduce_layout(in[0], dims, keep);
}
Tensors op::Sum::vjp(const Vjp& v) const {
  const Shape& s = v.in_shape(0);
  return {expand(reshape(v.grad(), reduced(s, dims, true)), s)};
}
namespace {
Tensor sum_of(const Tensor& x, uint8_t mask, bool keep) {
  return emit1(make_ref<op::Sum>(mask, keep), {x.dtype() == DType::boolean ? x.to(DType::i64) : x});
}
Tensor mean_of(const Tensor& x, uint8_t mask, bool keep) {
  const bool share = x.dtype() == DType::boolean;
  if (!share) check::computes("mean", x);
  const int64_t n = count(x.shape(), mask);
  TG_CHECK(n > 0, value, "[mean] {} has no elements to average over. Use sum(), which is 0.", x);
  const Tensor total = sum_of(x, mask, keep);
  return share ? (total.to(DType::f64) / double(n)).to(DType::f32) : total / double(n);
}
}  // namespace
Tensor sum(const Tensor& x) { return sum_of(x, all_of(x), false); }
Tensor sum(const Tensor& x, const Dims& dims, ReduceOptions o) {
  return sum_of(x, dims_mask("sum", x, dims), o.keepdim);
}
Tensor mean(const Tensor& x) { return mean_of(x, all_of(x), false); }
Tensor mean(const Tensor& x, const Dims& dims, ReduceOptions o) {
  return mean_of(x, dims_mask("mean", x, dims), o.keepdim);
}

Layouts op::infer_extremum(std::string_view name, const Tensor& x, uint8_t dims, bool keep) {
  check::number(name, x);
  TG_CHECK(count(x.shape(), dims) > 0, value,
           "[{}] {} has no elements to compare over. The {} of nothing is undefined. Pass at least one element.", name,
           x, name);
  return reduce_layout(x, dims, keep);
}
Tensors op::vjp_extremum(const Vjp& v, uint8_t dims) {
  return {emit1(make_ref<op::ExtremumGrad>(dims), {v.in(0), v.out(0), v.grad()})};
}
Tensors op::ExtremumGrad::vjp(const Vjp& v) const {
  if (!v.wants(2)) return {};
  const Tensor one = ones(v.in_shape(2), v.in_dtype(2), v.device());
  const Tensor shares = emit1(make_ref<op::ExtremumGrad>(dims), {v.in(0).detach(), v.in(1).detach(), one});
  return {Tensor(), Tensor(), reshape(emit1(make_ref<op::Sum>(dims, false), {v.grad() * shares}), v.in_shape(2))};
}
Tensor max(const Tensor& x) { return emit1(make_ref<op::Max>(all_of(x), false), {x}); }
Tensor max(const Tensor& x, const Dims& dims, ReduceOptions o) {
  return emit1(make_ref<op::Max>(dims_mask("max", x, dims), o.keepdim), {x});
}
Tensor min(const Tensor& x) { return emit1(make_ref<op::Min>(all_of(x), false), {x}); }
Tensor min(const Tensor& x, const Dims& dims, ReduceOptions o) {
  return emit1(make_ref<op::Min>(dims_mask("min", x, dims), o.keepdim), {x});
}

Layouts op::Var::infer(Inputs in) const {
  check::computes(kName, in[0]);
  const int64_t n = count(in[0].shape(), dims);
  TG_CHECK(std::isfinite(correction), value, "[var] correction is {}. It must be finite; 1 is usual.", correction);
  TG_CHECK(double(n) > correction, value,
           "[var] {} element(s) of {} make one result and correction is {}: there must be more elements than that. "
           "Pass more, or {{.correction = 0}} for the variance of a population.",
           n, in[0], correction);
  return reduce_layout(in[0], dims, keep);
}
Tensors op::Var::vjp(const Vjp& v) const {  // 2 (x - mean) / (n - correction)
  const Shape& s = v.in_shape(0);
  const Tensor x = widened(v.in(0)), dy = widened(reshape(v.grad(), reduced(s, dims, true)));
  const double factor = 2 / (double(count(s, dims)) - correction);
  return {((x - mean_of(x, dims, true)) * (dy * factor)).to(v.in_dtype(0))};
}
Tensor var(const Tensor& x) { return emit1(make_ref<op::Var>(all_of(x), false, 1), {x}); }
Tensor var(const Tensor& x, const Dims& dims, VarOptions o) {
  return emit1(make_ref<op::Var>(dims_mask("var", x, dims), o.keepdim, o.correction), {x});
}

namespace {
Tensor logsumexp_of(const Tensor& x, uint8_t mask, bool keep) {
  check::computes("logsumexp", x);
  const Tensor wide = widened(x);
  if (x.numel() == 0) return log(sum_of(wide, mask, keep)).to(x.dtype());
  Tensor most = emit1(make_ref<op::Max>(mask, true), {wide.detach()});  // a constant: it cancels
  most = where(lt(abs(most), INFINITY), most, 0.0);
  const Tensor y = log(sum_of(exp(wide - most), mask, true)) + most;
  return reshape(y, reduced(x.shape(), mask, keep)).to(x.dtype());
}
}  // namespace
Tensor logsumexp(const Tensor& x) { return logsumexp_of(x, all_of(x), false); }
Tensor logsumexp(const Tensor& x, const Dims& dims, ReduceOptions o) {
  return logsumexp_of(x, dims_mask("logsumexp", x, dims), o.keepdim);
}

Layouts op::Cumsum::infer(Inputs in) const {
  check::number(kName, in[0]);
  return {contiguous_like(in[0])};
}
Tensors op::Cumsum::vjp(const Vjp& v) const { return {emit1(make_ref<op::Cumsum>(dim, !reverse), {v.grad()})}; }
Tensor cumsum(const Tensor& x, int64_t dim) {
  return emit1(make_ref<op::Cumsum>(check::dim("cumsum", x, dim), false), {x});
}

Tensor detail::sum_to(const Tensor& x, const Shape& to) {
  if (x.shape() == to) return x;
  const size_t skip = x.ndim() - to.size();
  uint8_t mask = 0;
  for (size_t i = 0; i < x.ndim(); ++i)
    if (i < skip || (to[i - skip] == 1 && x.shape()[i] != 1)) mask |= uint8_t(1u << i);
  return reshape(emit1(make_ref<op::Sum>(mask, true), {x}), to);
}
}  // namespace tg
