#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/pointwise.h>

namespace tg {
namespace {
template <class F> Sym unary(const Sym& x) {
  if (x.is_number()) return Sym(F::f(x.number()));
  return Sym(emit1(stateless<op::Unary<F>>(), {x.tensor()}));
}
template <class F> Sym binary(const Sym& x, const Sym& y) {
  if (x.is_number() && y.is_number()) return Sym(F::f(x.number(), y.number()));
  if (y.is_number()) return Sym(emit1(make_ref<op::BinaryScalar<F>>(y.number(), false), {x.tensor()}));
  if (x.is_number()) return Sym(emit1(make_ref<op::BinaryScalar<F>>(x.number(), true), {y.tensor()}));
  return Sym(emit1(stateless<op::Binary<F>>(), {x.tensor(), y.tensor()}));
}
// Swapped: for a number on the left.
template <class F, class Swapped> SymBool compared(const Sym& x, const Sym& y) {
  const NoGradScope off;
  if (x.is_number() && y.is_number()) return {{}, {}, F::f(x.number(), y.number())};
  if (y.is_number()) return {emit1(make_ref<op::CompareScalar<F>>(y.number()), {x.tensor()}), x.tensor()};
  if (x.is_number()) return {emit1(make_ref<op::CompareScalar<Swapped>>(x.number()), {y.tensor()}), y.tensor()};
  return {emit1(stateless<op::Compare<F>>(), {x.tensor(), y.tensor()}), x.tensor()};
}
}  // namespace

Sym operator+(const Sym& x, const Sym& y) { return binary<op::Add>(x, y); }
Sym operator-(const Sym& x, const Sym& y) { return binary<op::Sub>(x, y); }
Sym operator*(const Sym& x, const Sym& y) { return binary<op::Mul>(x, y); }
Sym operator/(const Sym& x, const Sym& y) { return binary<op::Div>(x, y); }
Sym operator-(const Sym& x) { return unary<op::Neg>(x); }
SymBool operator==(const Sym& x, const Sym& y) { return compared<op::Eq, op::Eq>(x, y); }
SymBool operator<(const Sym& x, const Sym& y) { return compared<op::Lt, op::Gt>(x, y); }
SymBool operator<=(const Sym& x, const Sym& y) { return compared<op::Le, op::Ge>(x, y); }
SymBool operator>(const Sym& x, const Sym& y) { return compared<op::Gt, op::Lt>(x, y); }
SymBool operator>=(const Sym& x, const Sym& y) { return compared<op::Ge, op::Le>(x, y); }

Sym math::exp(const Sym& x) { return unary<op::Exp>(x); }
Sym math::log(const Sym& x) { return unary<op::Log>(x); }
Sym math::sqrt(const Sym& x) { return unary<op::Sqrt>(x); }
Sym math::rsqrt(const Sym& x) { return unary<op::Rsqrt>(x); }
Sym math::tanh(const Sym& x) { return unary<op::Tanh>(x); }
Sym math::sigmoid(const Sym& x) { return unary<op::Sigmoid>(x); }
Sym math::erf(const Sym& x) { return unary<op::Erf>(x); }
Sym math::sin(const Sym& x) { return unary<op::Sin>(x); }
Sym math::cos(const Sym& x) { return unary<op::Cos>(x); }
Sym math::pow(const Sym& x, const Sym& y) { return binary<op::Pow>(x, y); }
Sym math::select(const SymBool& condition, const Sym& yes, const Sym& no) {
  if (!condition.mask) return condition.value ? yes : no;
  const auto tensor = [&](const Sym& s) {
    return s.is_number() ? full({}, s.number(), condition.compared.dtype(), condition.compared.device()) : s.tensor();
  };
  return Sym(where(condition.mask, tensor(yes), tensor(no)));
}

namespace op {
// dy * 0 would be NaN for infinite dy. The result stays on the tape.
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
}  // namespace op
}  // namespace tg
