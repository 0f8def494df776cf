#include <tapegrad/ops/pointwise.h>

namespace tg::op {
template <class F> Tensor unary(const Tensor& x) { return emit1(stateless<Unary<F>>(), {x}); }

namespace {
template <class... F> constexpr auto all(TypeList<F...>) {
  return std::array<Tensor (*)(const Tensor&), sizeof...(F)>{unary<F>...};
}
[[gnu::used]] const auto instantiated = all(UnaryFns{});
}  // namespace
}  // namespace tg::op
