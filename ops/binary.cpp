#include <tapegrad/core/check.h>
#include <tapegrad/ops/pointwise.h>

#include <cmath>

namespace tg {
namespace {
void check_arithmetic(std::string_view name, const Tensor& x, bool integers) {
  integers ? check::number(name, x) : check::computes(name, x);
}
}  // namespace

Layouts detail::infer_binary(std::string_view name, Inputs in, bool integers) {
  check::same_dtype(name, in[0], in[1]);
  check_arithmetic(name, in[0], integers);
  return {contiguous_like(in[0], check::broadcast(name, in))};
}
Layouts detail::infer_scalar(std::string_view name, Inputs in, double s, bool integers) {
  check_arithmetic(name, in[0], integers);
  TG_CHECK(is_float(in[0].dtype()) || s == std::floor(s), dtype,
           "[{}] {} is no whole number and the tensor is {}. Use .to(DType::f32) first.", name, s, in[0]);
  check::representable(name, s, in[0].dtype());
  return {contiguous_like(in[0])};
}

Tensors op::Add::vjp(const Vjp& v) {
  return detail::of_operands(v, [&](size_t) { return v.grad(); });
}
Tensors op::Sub::vjp(const Vjp& v) {
  return detail::of_operands(v, [&](size_t i) { return i == 0 ? v.grad() : -v.grad(); });
}
Tensors op::Mul::vjp(const Vjp& v) {
  return detail::of_operands(v, [&](size_t i) { return v.grad() * v.in(1 - i); });
}
Tensors op::Div::vjp(const Vjp& v) {  // d(x/y) = dx / y - (x / y) / y dy
  const Tensor y = v.in(1), gy = v.grad() / y;
  return detail::of_operands(v, [&](size_t i) { return i == 0 ? gy : -(gy * (v.in(0) / y)); });
}
Tensor op::Add::vjp_scalar(const Vjp& v, double, bool) { return v.grad(); }
Tensor op::Sub::vjp_scalar(const Vjp& v, double, bool left) { return left ? -v.grad() : v.grad(); }
Tensor op::Mul::vjp_scalar(const Vjp& v, double s, bool) { return v.grad() * s; }
Tensor op::Div::vjp_scalar(const Vjp& v, double s, bool left) {
  if (!left) return v.grad() / s;
  const Tensor x = v.in(0);
  return v.grad() * ((-s / x) / x);
}

Tensor operator+(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Add>>(), {x, y}); }
Tensor operator-(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Sub>>(), {x, y}); }
Tensor operator*(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Mul>>(), {x, y}); }
Tensor operator/(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Div>>(), {x, y}); }
Tensor operator+(const Tensor& x, double s) { return emit1(make_ref<op::BinaryScalar<op::Add>>(s, false), {x}); }
Tensor operator-(const Tensor& x, double s) { return emit1(make_ref<op::BinaryScalar<op::Sub>>(s, false), {x}); }
Tensor operator-(double s, const Tensor& x) { return emit1(make_ref<op::BinaryScalar<op::Sub>>(s, true), {x}); }
Tensor operator*(const Tensor& x, double s) { return emit1(make_ref<op::BinaryScalar<op::Mul>>(s, false), {x}); }
Tensor operator/(const Tensor& x, double s) { return emit1(make_ref<op::BinaryScalar<op::Div>>(s, false), {x}); }
Tensor operator/(double s, const Tensor& x) { return emit1(make_ref<op::BinaryScalar<op::Div>>(s, true), {x}); }
Tensor maximum(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Maximum>>(), {x, y}); }
Tensor maximum(const Tensor& x, double s) { return emit1(make_ref<op::BinaryScalar<op::Maximum>>(s, false), {x}); }
Tensor maximum(double s, const Tensor& x) { return emit1(make_ref<op::BinaryScalar<op::Maximum>>(s, true), {x}); }
Tensor minimum(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Minimum>>(), {x, y}); }
Tensor minimum(const Tensor& x, double s) { return emit1(make_ref<op::BinaryScalar<op::Minimum>>(s, false), {x}); }
Tensor minimum(double s, const Tensor& x) { return emit1(make_ref<op::BinaryScalar<op::Minimum>>(s, true), {x}); }
Tensor pow(const Tensor& x, const Tensor& y) { return emit1(stateless<op::Binary<op::Pow>>(), {x, y}); }
Tensor pow(const Tensor& x, double s) {
  return s == 2 ? x * x : emit1(make_ref<op::BinaryScalar<op::Pow>>(s, false), {x});
}
Tensor pow(double s, const Tensor& x) { return emit1(make_ref<op::BinaryScalar<op::Pow>>(s, true), {x}); }
}  // namespace tg
