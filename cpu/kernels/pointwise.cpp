#include <tapegrad/cpu/unary.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class F, class G> void visit_taken(DType d, G&& g) {
  if constexpr (op::takes_integers<F>)
    if (is_index(d)) return kernel::visit_index(d, g);
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

constexpr KernelOrigin kUnaryOrigin{__FILE__, __LINE__, TG_ISA_LEVEL, true};
[[maybe_unused]] const bool unaries = []<class... F>(op::TypeList<F...>) {
  return (add_unary<F>(kUnaryOrigin), ...);
}(op::UnaryFns{});
TG_STRIDED_KERNELS(op::BinaryFns, op::Binary, cpu, binary);
TG_STRIDED_KERNELS(op::BinaryFns, op::BinaryScalar, cpu, binary_scalar);
TG_STRIDED_KERNELS(op::PartialFns, op::BinaryGrad, cpu, binary_grad);
TG_STRIDED_KERNELS(op::PartialFns, op::BinaryScalarGrad, cpu, binary_scalar_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
