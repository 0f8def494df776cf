#include <tapegrad/cuda/unary.h>

namespace tg::cuda {
namespace {
// n.choice: the number is the left operand.
template <class F> struct WithNumber {
  template <class T> __device__ __forceinline__ static T f(Scalars<T> n, T x) {
    return F::f(n.choice ? n.a : x, n.choice ? x : n.a);
  }
};
template <class F> struct Partial {  // n.choice: derivative by y
  template <class T> __device__ __forceinline__ static T f(Scalars<T> n, T x, T y, T g) {
    return (n.choice ? F::dy(x, y) : F::dx(x, y)) * g;
  }
};
template <class F> struct PartialWithNumber {
  template <class T> __device__ __forceinline__ static T f(Scalars<T> n, T x, T g) {
    return (n.choice ? F::dy(n.a, x) : F::dx(x, n.a)) * g;
  }
};
// pow computes in double.
template <> constexpr bool kGrouped<Value<op::Pow>> = false;
template <> constexpr bool kGrouped<WithNumber<op::Pow>> = false;
template <> constexpr bool kGrouped<Partial<op::Pow>> = false;
template <> constexpr bool kGrouped<PartialWithNumber<op::Pow>> = false;

template <class F, class G> void visit_taken(DType d, G&& g) {
  if constexpr (op::takes_integers<F>)
    if (is_index(d)) return kernel::visit_index(d, g);
  visit_computed(d, g);
}
template <class F> void binary(const op::Binary<F>&, Bufs in, Bufs out, Context& c) {
  visit_taken<F>(out[0].dtype(), [&]<class T>() { map<Value<F>, T, T, T>(c, in, out[0]); });
}
template <class F> void binary_scalar(const op::BinaryScalar<F>& op, Bufs in, Bufs out, Context& c) {
  visit_taken<F>(out[0].dtype(), [&]<class T>() { map<WithNumber<F>, T, T>(c, in, out[0], {T(op.s), {}, op.left}); });
}
template <class F> void binary_grad(const op::BinaryGrad<F>& op, Bufs in, Bufs out, Context& c) {
  visit_computed(out[0].dtype(), [&]<class T>() { map<Partial<F>, T, T, T, T>(c, in, out[0], {{}, {}, op.by_y}); });
}
template <class F> void binary_scalar_grad(const op::BinaryScalarGrad<F>& op, Bufs in, Bufs out, Context& c) {
  visit_computed(out[0].dtype(), [&]<class T>() {
    map<PartialWithNumber<F>, T, T, T>(c, in, out[0], {T(op.s), {}, op.left});
  });
}

constexpr KernelOrigin kUnaryOrigin{__FILE__, __LINE__, TG_ISA_LEVEL, true};
[[maybe_unused]] const bool unaries = []<class... F>(op::TypeList<F...>) {
  return (add_unary<F>(kUnaryOrigin), ...);
}(op::UnaryFns{});
TG_STRIDED_KERNELS(op::BinaryFns, op::Binary, cuda, binary);
TG_STRIDED_KERNELS(op::BinaryFns, op::BinaryScalar, cuda, binary_scalar);
TG_STRIDED_KERNELS(op::PartialFns, op::BinaryGrad, cuda, binary_grad);
TG_STRIDED_KERNELS(op::PartialFns, op::BinaryScalarGrad, cuda, binary_scalar_grad);
}  // namespace
}  // namespace tg::cuda
