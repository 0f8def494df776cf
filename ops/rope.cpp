#include <tapegrad/ops/check.h>
#include <tapegrad/ops/rope.h>

#include <cmath>

namespace tg {
Layouts op::Rope::infer(Inputs in) const {
  const Tensor& x = in[0];
  check::ndim_at_least(kName, x, 2);
  check::computes(kName, x);
  TG_CHECK(x.shape().back() % 2 == 0, shape,
           "[rope] {} has rows of {} elements. They are turned in pairs: the last size must be even.", x,
           x.shape().back());
  TG_CHECK(o.theta >= 1 && std::isfinite(o.theta), value, "[rope] theta is {}. It must be finite and 1 or more.",
           o.theta);
  constexpr int64_t kEnd = int64_t(1) << 29;  // where math::sincos ends
  const int64_t t = x.size(-2);
  TG_CHECK(o.start >= 0 && o.start <= kEnd && t <= kEnd - o.start, value,
           "[rope] {} rows from position {} on, of {}. Positions must be in [0, {}).", t, o.start, x, kEnd);
  return {contiguous_like(x)};
}
Tensors op::Rope::vjp(const Vjp& v) const { return {emit1(make_ref<op::Rope>(o, !inverse), {v.grad()})}; }
Tensor rope(const Tensor& x, RopeOptions o) { return emit1(make_ref<op::Rope>(o, false), {x}); }
}  // namespace tg
