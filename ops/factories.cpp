#include <tapegrad/core/check.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/factories.h>

namespace tg {
namespace {
Layout checked(std::string_view op, const Shape& s, DType t, Device d) {
  detail::checked_numel(op, s);
  detail::runtime_of(d);
  return Layout::contiguous(s, t, d);
}
void check_random(std::string_view op, DType t) {
  TG_CHECK(is_float(t) && t != DType::f16, dtype, "[{}] cannot draw {} values. Use f64, f32 or bf16.", op, t);
}
Layout checked_normal(std::string_view op, const Shape& s, double mean, double std, DType t, Device d) {
  check_random(op, t);
  TG_CHECK(std >= 0, value, "[{}] standard deviation {} is negative. It must be 0 or more.", op, std);
  TG_CHECK(std::isfinite(float(mean)) && std::isfinite(float(std)), value,
           "[{}] mean {} and standard deviation {}. Both must be finite in f32, because values are drawn in f32.", op,
           mean, std);
  return checked(op, s, t, d);
}
}  // namespace

Layouts op::Full::infer(Inputs) const { return {layout}; }
Layouts op::Arange::infer(Inputs) const { return {layout}; }

Tensor full(const Shape& s, double value, DType t, Device d) {
  check::representable("full", value, t);
  return emit1(make_ref<op::Full>(checked("full", s, t, d), value), {});
}
Tensor zeros(const Shape& s, DType t, Device d) { return full(s, 0, t, d); }
Tensor ones(const Shape& s, DType t, Device d) { return full(s, 1, t, d); }
Tensor zeros_like(const Tensor& x) { return full(x.shape(), 0, x.dtype(), x.device()); }
Tensor ones_like(const Tensor& x) { return full(x.shape(), 1, x.dtype(), x.device()); }
Tensor arange(double start, double stop, double step, DType t, Device d) {
  TG_CHECK(step != 0 && std::isfinite(start) && std::isfinite(stop) && std::isfinite(step), value,
           "[arange] start {}, stop {}, step {} make no sequence. They must be finite, and step not 0.", start, stop,
           step);
  const double n = std::max(0.0, std::ceil((stop - start) / step));
  TG_CHECK(n < 0x1p53, value, "[arange] start {}, stop {}, step {} make {} values, more than memory can hold.", start,
           stop, step, n);
  if (n > 0) {
    check::representable("arange", start, t);
    check::representable("arange", start + (n - 1) * step, t);
    if (n > 1) check::representable("arange", start + step, t);
  }
  return emit1(make_ref<op::Arange>(checked("arange", {int64_t(n)}, t, d), start, step), {});
}
Tensor randn(const Shape& s, Rng& rng, double mean, double std, DType t, Device d) {
  const Layout l = checked_normal("randn", s, mean, std, t, d);
  return emit1(make_ref<op::RandomNormal>(l, mean, std, rng.take(uint64_t(l.numel()))), {});
}
Tensor trunc_normal(const Shape& s, Rng& rng, double mean, double std, DType t, Device d) {
  const Layout l = checked_normal("trunc_normal", s, mean, std, t, d);
  return emit1(make_ref<op::RandomTruncatedNormal>(l, mean, std, rng.take(uint64_t(l.numel()))), {});
}
Tensor rand(const Shape& s, Rng& rng, double lo, double hi, DType t, Device d) {
  check_random("rand", t);
  TG_CHECK(lo <= hi && std::isfinite(float(hi) - float(lo)), value,
           "[rand] from {} to {}. The bounds must be finite and ordered, and their distance fit f32. Pass lo <= hi.",
           lo, hi);
  const Layout l = checked("rand", s, t, d);
  return emit1(make_ref<op::RandomUniform>(l, lo, hi, rng.take(uint64_t(l.numel()))), {});
}
}  // namespace tg
