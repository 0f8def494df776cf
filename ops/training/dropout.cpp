#include <tapegrad/core/check.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/training/dropout.h>

namespace tg {
Layouts op::Dropout::infer(Inputs in) const {
  check::computes(kName, in[0]);
  TG_CHECK(p >= 0 && p < 1, value, "[dropout] the probability is {}. It must be in [0, 1).", p);
  return {contiguous_like(in[0])};
}
Tensors op::Dropout::vjp(const Vjp& v) const { return {emit1(make_ref<op::Dropout>(p, rng), {v.grad()})}; }
Tensor dropout(const Tensor& x, double p, Rng& rng) {
  if (p == 0) return x;
  Tensor y = emit1(make_ref<op::Dropout>(p, rng), {x});
  rng.take(uint64_t(x.numel()));
  return y;
}
}  // namespace tg
