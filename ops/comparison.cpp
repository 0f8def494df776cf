#include <tapegrad/core/check.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/factories.h>

#include <cmath>

namespace tg {
namespace {
void check_comparable(std::string_view op, const Tensor& x, bool bools) {
  if (!bools || x.dtype() != DType::boolean) check::number(op, x);
}
void check_bool(std::string_view op, std::string_view role, const Tensor& x) {
  TG_CHECK(x.dtype() == DType::boolean, dtype,
           "[{}] the {} is {}. It must be bool: compare first, as in ne(x, 0), or use .to(DType::boolean).", op, role,
           x);
}
template <class F> Tensor compare(const Tensor& x, const Tensor& y) {
  const NoGradScope off;  // a bool has no gradient
  if (x && y && is_index(x.dtype()) && is_index(y.dtype()) && x.dtype() != y.dtype())
    return emit1(stateless<op::Compare<F>>(), {x.to(DType::i64), y.to(DType::i64)});
  return emit1(stateless<op::Compare<F>>(), {x, y});
}
template <class F> Tensor compare(const Tensor& x, double s) {
  const NoGradScope off;
  return emit1(make_ref<op::CompareScalar<F>>(s), {x});
}
// A 0-d operand of where(). An empty x gives no dtype: the op refuses it.
Tensor number_like(const Tensor& x, double s) {
  if (!x) return x;
  check::representable("where", s, x.dtype());
  return full({}, s, x.dtype(), x.device());
}
void add_bound(StructuralHash& k, const std::optional<double>& bound) {
  k.add(bound.has_value());
  k.add(bound.value_or(0));
}
}  // namespace

Layouts detail::infer_compare(std::string_view op, Inputs in, bool bools) {
  check::same_dtype(op, in[0], in[1]);
  check_comparable(op, in[0], bools);
  return {contiguous_like(in[0], check::broadcast(op, in), DType::boolean)};
}
Layouts detail::infer_compare_scalar(std::string_view op, Inputs in, double s, bool bools) {
  check_comparable(op, in[0], bools);
  check::representable(op, s, in[0].dtype());
  return {contiguous_like(in[0], DType::boolean)};
}
Tensor eq(const Tensor& x, const Tensor& y) { return compare<op::Eq>(x, y); }
Tensor ne(const Tensor& x, const Tensor& y) { return compare<op::Ne>(x, y); }
Tensor lt(const Tensor& x, const Tensor& y) { return compare<op::Lt>(x, y); }
Tensor le(const Tensor& x, const Tensor& y) { return compare<op::Le>(x, y); }
Tensor gt(const Tensor& x, const Tensor& y) { return compare<op::Gt>(x, y); }
Tensor ge(const Tensor& x, const Tensor& y) { return compare<op::Ge>(x, y); }
Tensor eq(const Tensor& x, double s) { return compare<op::Eq>(x, s); }
Tensor ne(const Tensor& x, double s) { return compare<op::Ne>(x, s); }
Tensor lt(const Tensor& x, double s) { return compare<op::Lt>(x, s); }
Tensor le(const Tensor& x, double s) { return compare<op::Le>(x, s); }
Tensor gt(const Tensor& x, double s) { return compare<op::Gt>(x, s); }
Tensor ge(const Tensor& x, double s) { return compare<op::Ge>(x, s); }

Layouts op::Where::infer(Inputs in) const {
  check_bool(kName, "condition", in[0]);
  check::same_dtype(kName, in[1], in[2]);
  return {contiguous_like(in[1], check::broadcast(kName, in))};
}
Tensors op::Where::vjp(const Vjp& v) const {
  const Tensor condition = v.in(0);
  return {Tensor(), v.wants(1) ? detail::sum_to(where(condition, v.grad(), 0.0), v.in_shape(1)) : Tensor(),
          v.wants(2) ? detail::sum_to(where(condition, 0.0, v.grad()), v.in_shape(2)) : Tensor()};
}
Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  return emit1(stateless<op::Where>(), {condition, x, y});
}
Tensor where(const Tensor& condition, const Tensor& x, double y) { return where(condition, x, number_like(x, y)); }
Tensor where(const Tensor& condition, double x, const Tensor& y) { return where(condition, number_like(y, x), y); }

Layouts op::MaskedFill::infer(Inputs in) const {
  check_bool(kName, "mask", in[1]);
  check::representable(kName, value, in[0].dtype());
  TG_CHECK(check::broadcast(kName, in) == in[0].shape(), shape,
           "[masked_fill] the mask is {}, x is {}. A mask is repeated to x's shape, never x to the mask's. Use where() "
           "to broadcast both.",
           in[1], in[0]);
  return {contiguous_like(in[0])};
}
Tensors op::MaskedFill::vjp(const Vjp& v) const { return {masked_fill(v.grad(), v.in(1), 0)}; }
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  return emit1(make_ref<op::MaskedFill>(value), {x, mask});
}

Layouts op::Clamp::infer(Inputs in) const {
  const Tensor& x = in[0];
  check::number(kName, x);
  for (const auto& bound : {o.min, o.max})
    if (bound) check::representable(kName, *bound, x.dtype());
  return {contiguous_like(x)};
}
Tensors op::Clamp::vjp(const Vjp& v) const { return {emit1(make_ref<op::ClampGrad>(o), {v.in(0), v.grad()})}; }
void op::Clamp::key(StructuralHash& k) const { add_bound(k, o.min), add_bound(k, o.max); }
Tensors op::ClampGrad::compose(Inputs in) const {
  Tensor dx = in[1];
  if (o.min) dx = where(ge(in[0], *o.min), dx, 0.0);
  if (o.max) dx = where(le(in[0], *o.max), dx, 0.0);
  return {dx};
}
void op::ClampGrad::key(StructuralHash& k) const { add_bound(k, o.min), add_bound(k, o.max); }
Tensor clamp(const Tensor& x, const ClampOptions& o) {
  TG_CHECK(o.min || o.max, value, "[clamp] there is no bound. Pass min, max or both: clamp(x, {{.min = 0}}).");
  for (const auto& bound : {o.min, o.max})
    TG_CHECK(!bound || !std::isnan(*bound), value, "[clamp] a bound is nan. It must be a number, or left out.");
  TG_CHECK(!o.min || !o.max || *o.min <= *o.max, value,
           "[clamp] min {} is above max {}. It must not be. Exchange them.", *o.min, *o.max);
  return emit1(make_ref<op::Clamp>(o), {x});
}
Tensor detail::differs_from(const Tensor& ids, int64_t value) {
  if (value == int32_t(value)) return ne(ids, double(value));
  const int64_t high = value / (int64_t(1) << 32) * (int64_t(1) << 32);
  return ne(ids.to(DType::i64) - double(high), double(value - high));
}
}  // namespace tg
