#include <tapegrad/ops/pointwise.h>

#include <cmath>

namespace tg {
namespace {
void check_arithmetic(std::string_view name, const Tensor& x, bool integers) {
  integers ? check::number(name, x) : check::computes(name, x);
}
}  // namespace

Layouts infer_binary(std::string_view name, Inputs in, bool integers) {
  check::same_dtype(name, in[0], in[1]);
  check_arithmetic(name, in[0], integers);
  return {Layout::contiguous(check::broadcast(name, in), in[0].dtype(), in[0].device())};
}
Layouts infer_scalar(std::string_view name, Inputs in, double s, bool integers) {
  check_arithmetic(name, in[0], integers);
  TG_CHECK(is_float(in[0].dtype()) || s == std::floor(s), dtype,
           "[{}] {} is no whole number and the tensor is {}. Use .to(DType::f32) first.", name, s, in[0]);
  check::representable(name, s, in[0].dtype());
  return {contiguous_like(in[0])};
}

Tensors op::Add::vjp(const Vjp& v) {
  return {v.wants(0) ? sum_to(v.grad(), v.in_shape(0)) : Tensor(),
          v.wants(1) ? sum_to(v.grad(), v.in_shape(1)) : Tensor()};
}
Tensors op::Sub::vjp(const Vjp& v) {
  return {v.wants(0) ? sum_to(v.grad(), v.in_shape(0)) : Tensor(),
          v.wants(1) ? sum_to(-v.grad(), v.in_shape(1)) : Tensor()};
}
Tensors op::Mul::vjp(const Vjp& v) {
  return {v.wants(0) ? sum_to(v.grad() * v.in(1), v.in_shape(0)) : Tensor(),
          v.wants(1) ? sum_to(v.grad() * v.in(0), v.in_shape(1)) : Tensor()};
}
Tensors op::Div::vjp(const Vjp& v) {  // d(x/y) = dx / y - (x / y) / y dy
  const Tensor y = v.in(1), gy = v.grad() / y;
  return {v.wants(0) ? sum_to(gy, v.in_shape(0)) : Tensor(),
          v.wants(1) ? sum_to(-(gy * (v.in(0) / y)), v.in_shape(1)) : Tensor()};
}
Tensor op::Add::vjp_scalar(const Vjp& v, double, bool) { return v.grad(); }
Tensor op::Sub::vjp_scalar(const Vjp& v, double, bool left) { return left ? -v.grad() : v.grad(); }
Tensor op::Mul::vjp_scalar(const Vjp& v, double s, bool) { return v.grad() * s; }
Tensor op::Div::vjp_scalar(const Vjp& v, double s, bool left) {
  if (!left) return v.grad() / s;
  const Tensor x = v.in(0);
  return v.grad() * ((-s / x) / x);
}
}  // namespace tg
