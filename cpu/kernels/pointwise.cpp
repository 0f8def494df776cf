#include <tapegrad/cpu/unary.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class F, class G> void visit_taken(DType d, G&& g) {
  if constexpr (op::takes_integers<F>)
    if (is_index(d)) return visit_index(d, g);
  visit_computed(d, g);
}
template <class F> void binary(const op::Binary<F>&, Bufs in, Bufs out, Context&) {
  visit_taken<F>(out[0].dtype(), [&]<class T>() { map<T, T, T>(in, out, [](T x, T y) { return F::f(x, y); }); });
}
template <class F> void binary_scalar(const op::BinaryScalar<F>& op, Bufs in, Bufs out, Context&) {
  visit_taken<F>(out[0].dtype(), [&]<class T>() {
    const T s = T(op.s);
    if (op.left)
      map<T, T>(in, out, [s](T x) { return F::f(s, x); });
    else
      map<T, T>(in, out, [s](T x) { return F::f(x, s); });
  });
}
template <class F> void binary_grad(const op::BinaryGrad<F>& op, Bufs in, Bufs out, Context&) {
  visit_computed(out[0].dtype(), [&]<class T>() {
    if (op.by_y)
      map<T, T, T, T>(in, out, [](T x, T y, T g) { return F::dy(x, y) * g; });
    else
      map<T, T, T, T>(in, out, [](T x, T y, T g) { return F::dx(x, y) * g; });
  });
}
template <class F> void binary_scalar_grad(const op::BinaryScalarGrad<F>& op, Bufs in, Bufs out, Context&) {
  visit_computed(out[0].dtype(), [&]<class T>() {
    const T s = T(op.s);
    if (op.left)
      map<T, T, T>(in, out, [s](T x, T g) { return F::dy(s, x) * g; });
    else
      map<T, T, T>(in, out, [s](T x, T g) { return F::dx(x, s) * g; });
  });
}

template <class F> void add_binary(const KernelOrigin& o) {
  tg::detail::add_kernel<op::Binary<F>, Backend::cpu, binary<F>>(o);
  tg::detail::add_kernel<op::BinaryScalar<F>, Backend::cpu, binary_scalar<F>>(o);
  if constexpr (op::has_partials<F>) {
    tg::detail::add_kernel<op::BinaryGrad<F>, Backend::cpu, binary_grad<F>>(o);
    tg::detail::add_kernel<op::BinaryScalarGrad<F>, Backend::cpu, binary_scalar_grad<F>>(o);
  }
}
constexpr KernelOrigin kPointwiseOrigin{__FILE__, __LINE__, TG_ISA_LEVEL, true};
template <class... U, class... B> bool add_all(op::TypeList<U...>, op::TypeList<B...>, const KernelOrigin& o) {
  (add_unary<U>(o), ...);
  (add_binary<B>(o), ...);
  return true;
}
[[maybe_unused]] const bool registered = add_all(op::UnaryFns{}, op::BinaryFns{}, kPointwiseOrigin);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
