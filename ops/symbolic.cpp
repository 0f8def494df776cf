#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/pointwise.h>

namespace tg {
namespace {
template <class F> Sym unary(const Sym& x) {
  if (x.is_number()) return Sym(F::f(x.number()));
  return Sym(emit1(stateless<Unary<F>>(), {x.tensor()}));
}
template <class F> Sym binary(const Sym& x, const Sym& y) {
  if (x.is_number() && y.is_number()) return Sym(F::f(x.number(), y.number()));
  if (y.is_number()) return Sym(emit1(make<BinaryScalar<F>>(y.number(), false), {x.tensor()}));
  if (x.is_number()) return Sym(emit1(make<BinaryScalar<F>>(x.number(), true), {y.tensor()}));
  return Sym(emit1(stateless<Binary<F>>(), {x.tensor(), y.tensor()}));
}
// Swapped is the comparison with its sides exchanged, for a number on the left.
template <class F, class Swapped> SymBool compared(const Sym& x, const Sym& y) {
  const NoGrad off;
  if (x.is_number() && y.is_number()) return {{}, {}, F::f(x.number(), y.number())};
  if (y.is_number()) return {emit1(make<CompareScalar<F>>(y.number()), {x.tensor()}), x.tensor()};
  if (x.is_number()) return {emit1(make<CompareScalar<Swapped>>(x.number()), {y.tensor()}), y.tensor()};
  return {emit1(stateless<Compare<F>>(), {x.tensor(), y.tensor()}), x.tensor()};
}
}  // namespace

Sym operator+(const Sym& x, const Sym& y) { return binary<Add>(x, y); }
Sym operator-(const Sym& x, const Sym& y) { return binary<Sub>(x, y); }
Sym operator*(const Sym& x, const Sym& y) { return binary<Mul>(x, y); }
Sym operator/(const Sym& x, const Sym& y) { return binary<Div>(x, y); }
Sym operator-(const Sym& x) { return unary<Neg>(x); }
SymBool operator==(const Sym& x, const Sym& y) { return compared<Eq, Eq>(x, y); }
SymBool operator<(const Sym& x, const Sym& y) { return compared<Lt, Gt>(x, y); }
SymBool operator<=(const Sym& x, const Sym& y) { return compared<Le, Ge>(x, y); }
SymBool operator>(const Sym& x, const Sym& y) { return compared<Gt, Lt>(x, y); }
SymBool operator>=(const Sym& x, const Sym& y) { return compared<Ge, Le>(x, y); }

Sym math::exp(const Sym& x) { return unary<Exp>(x); }
Sym math::log(const Sym& x) { return unary<Log>(x); }
Sym math::sqrt(const Sym& x) { return unary<Sqrt>(x); }
Sym math::rsqrt(const Sym& x) { return unary<Rsqrt>(x); }
Sym math::tanh(const Sym& x) { return unary<Tanh>(x); }
Sym math::sigmoid(const Sym& x) { return unary<Sigmoid>(x); }
Sym math::erf(const Sym& x) { return unary<Erf>(x); }
Sym math::sin(const Sym& x) { return unary<Sin>(x); }
Sym math::cos(const Sym& x) { return unary<Cos>(x); }
Sym math::pow(const Sym& x, const Sym& y) { return binary<Pow>(x, y); }
Sym math::select(const SymBool& condition, const Sym& yes, const Sym& no) {
  if (!condition.mask) return condition.value ? yes : no;
  const auto tensor = [&](const Sym& s) {
    return s.is_number() ? full({}, s.number(), condition.compared.dtype(), condition.compared.device()) : s.tensor();
  };
  return Sym(where(condition.mask, tensor(yes), tensor(no)));
}
}  // namespace tg
