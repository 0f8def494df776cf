#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>

#include <cmath>

namespace tg {
namespace {
void check_arithmetic(std::string_view name, const Tensor& x, bool floats_only) {
  if (floats_only || !is_index(x.dtype())) check::computes(name, x);
}
}  // namespace

Layouts infer_binary(std::string_view name, Inputs in, bool floats_only) {
  const Layout &x = in[0].layout(), &y = in[1].layout();
  check::same_dtype(name, in[0], in[1]);
  check_arithmetic(name, in[0], floats_only);
  if (x.shape == y.shape) return {Layout::contiguous(x.shape, x.dtype, x.device)};
  const bool x_longer = x.shape.size() >= y.shape.size();
  const Shape &big = x_longer ? x.shape : y.shape, &small = x_longer ? y.shape : x.shape;
  Shape r = big;
  for (size_t i = 0, skip = big.size() - small.size(); i < small.size(); ++i) {
    TG_CHECK(small[i] == r[i + skip] || small[i] == 1 || r[i + skip] == 1, shape,
             "[{}] shapes do not broadcast: {} and {}. Aligned at the right, each size must be equal or 1.", name,
             in[0], in[1]);
    if (small[i] != 1) r[i + skip] = small[i];
  }
  return {Layout::contiguous(r, x.dtype, x.device)};
}
Layouts infer_scalar(std::string_view name, Inputs in, double s, bool floats_only) {
  check_arithmetic(name, in[0], floats_only);
  TG_CHECK(is_float(in[0].dtype()) || s == std::floor(s), dtype,
           "[{}] {} is no whole number and the tensor is {}. Use .to(DType::f32) first.", name, s, in[0]);
  check::representable(name, s, in[0].dtype());
  return {Layout::contiguous(in[0].shape(), in[0].dtype(), in[0].device())};
}

Tensors Add::vjp(const Vjp& v) {
  return {v.wants(0) ? sum_to(v.grad(), v.in_shape(0)) : Tensor(),
          v.wants(1) ? sum_to(v.grad(), v.in_shape(1)) : Tensor()};
}
Tensors Sub::vjp(const Vjp& v) {
  return {v.wants(0) ? sum_to(v.grad(), v.in_shape(0)) : Tensor(),
          v.wants(1) ? sum_to(-v.grad(), v.in_shape(1)) : Tensor()};
}
Tensors Mul::vjp(const Vjp& v) {
  return {v.wants(0) ? sum_to(v.grad() * v.in(1), v.in_shape(0)) : Tensor(),
          v.wants(1) ? sum_to(v.grad() * v.in(0), v.in_shape(1)) : Tensor()};
}
Tensors Div::vjp(const Vjp& v) {  // d(x/y) = dx / y - (x / y) / y dy
  const Tensor y = v.in(1), gy = v.grad() / y;
  return {v.wants(0) ? sum_to(gy, v.in_shape(0)) : Tensor(),
          v.wants(1) ? sum_to(-(gy * (v.in(0) / y)), v.in_shape(1)) : Tensor()};
}
Tensor Add::vjp_scalar(const Vjp& v, double, bool) { return v.grad(); }
Tensor Sub::vjp_scalar(const Vjp& v, double, bool left) { return left ? -v.grad() : v.grad(); }
Tensor Mul::vjp_scalar(const Vjp& v, double s, bool) { return v.grad() * s; }
Tensor Div::vjp_scalar(const Vjp& v, double s, bool left) {
  if (!left) return v.grad() / s;
  const Tensor x = v.in(0);
  return v.grad() * ((-s / x) / x);
}
}  // namespace tg
