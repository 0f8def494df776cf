#include <tapegrad/core/check.h>
#include <tapegrad/ops/check.h>

#include <cmath>

namespace tg {
void check::computes(std::string_view op, const Tensor& x) {
  TG_CHECK(is_float(x.dtype()) && x.dtype() != DType::f16, dtype,
           "[{}] cannot compute on {}. Use f64, f32 or bf16: .to(DType::f32).", op, x);
}
void check::number(std::string_view op, const Tensor& x) {
  if (!is_index(x.dtype())) computes(op, x);
}
void check::same_dtype(std::string_view op, const Tensor& a, const Tensor& b) {
  const bool one_is_f64 =
      is_float(a.dtype()) && is_float(b.dtype()) && (a.dtype() == DType::f64 || b.dtype() == DType::f64);
  TG_CHECK(a.dtype() == b.dtype(), dtype, "[{}] dtypes differ: {} and {}. There is no promotion; use .to(dtype).{}", op,
           a, b, one_is_f64 ? " Numbers such as 1.0 are f64: tensor<float>({1.0, 2.0}, {2}) makes f32." : "");
}
void check::ndim_at_least(std::string_view op, const Tensor& x, size_t n) {
  TG_CHECK(x.ndim() >= n, shape, "[{}] needs {} dimension(s) or more, got {}. Add sizes of 1 with reshape().", op, n,
           x);
}
size_t check::dim(std::string_view op, const Tensor& x, int64_t dim) {
  TG_CHECK(x, value, "[{}] input 0 is an empty tensor{}", op, detail::about_empty());
  ndim_at_least(op, x, 1);
  return detail::normal_dim(op, dim, x.shape());
}
void check::index(std::string_view op, const Tensor& ids) {
  TG_CHECK(is_index(ids.dtype()), dtype, "[{}] indices must be i32 or i64, got {}. Use .to(DType::i64).", op, ids);
}

Shape check::linear(std::string_view op, const Tensor& x, const Tensor& weight, const Tensor* bias) {
  ndim_at_least(op, x, 1);
  TG_CHECK(weight.ndim() == 2, shape, "[{}] weight {} is no matrix. It must be (out, in).", op, weight);
  const int64_t out = weight.shape()[0], in = weight.shape()[1];
  TG_CHECK(x.shape().back() == in, shape,
           "[{}] inner sizes differ: x is {}, weight is {}. x's last size ({}) must equal weight's last size ({}). Did "
           "you pass the weight transposed?",
           op, x, weight, x.shape().back(), in);
  TG_CHECK(!bias || bias->shape() == Shape{out}, shape,
           "[{}] bias is {}, weight is {}. The bias must have one element per row of the weight ({}).", op, *bias,
           weight, out);
  return x.shape().without_last().followed_by(out);
}

Shape check::broadcast(std::string_view name, Inputs in) {
  Shape r = in[0].shape();
  for (const Tensor& x : in.subspan(1)) {
    const Shape& s = x.shape();
    if (s == r) continue;
    while (r.size() < s.size()) r.insert(0, 1);
    for (size_t i = 0, skip = r.size() - s.size(); i < s.size(); ++i) {
      if (s[i] == r[i + skip] || s[i] == 1) continue;
      if (r[i + skip] != 1) {
        std::string all = detail::describe(in[0]);
        for (const Tensor& t : in.subspan(1)) all += " and " + detail::describe(t);
        detail::fail(Error::Kind::shape,
                     fmt::format("[{}] shapes do not broadcast: {}. Aligned at the right, each size "
                                 "must be equal or 1.",
                                 name, all));
      }
      r[i + skip] = s[i];
    }
  }
  return r;
}

void check::representable(std::string_view op, double x, DType t) {
  if (is_float(t)) return;
  const bool wide = t == DType::i64, is_signed = t == DType::i8 || t == DType::i32 || wide;
  const double bits = 8 * double(size_of(t)), top = t == DType::boolean ? 2 : std::exp2(is_signed ? bits - 1 : bits);
  TG_CHECK(x == std::floor(x) && x < top && x >= (is_signed ? -top : 0), value,
           "[{}] {} is no value of {}. It must be a whole number from {} to {}; a floating dtype takes fractions.", op,
           x, t, is_signed ? -top : 0.0, top - 1);
}
}  // namespace tg
