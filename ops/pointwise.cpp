#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/pointwise.h>

namespace tg::op {
// A product with 0 would be NaN where dy is infinite. The result stays on the tape.
Tensor times_slope(const Tensor& dy, double slope) {
  return slope == 0 ? masked_fill(dy, ones({}, DType::boolean, dy.device()), 0) : dy * slope;
}
template <class F> Tensor unary(const Tensor& x) { return emit1(stateless<Unary<F>>(), {x}); }

namespace {
template <class... F> constexpr auto all(TypeList<F...>) {
  return std::array<Tensor (*)(const Tensor&), sizeof...(F)>{unary<F>...};
}
[[gnu::used]] const auto instantiated = all(UnaryFns{});
}  // namespace
}  // namespace tg::op
