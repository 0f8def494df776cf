// Kernels of ops/pointwise.h and ops/binary.h, made by folding over their lists: the same functors as on the CPU.
#include <tapegrad/cuda/map.h>
#include <tapegrad/ops/pointwise.h>

namespace tg::cuda {
namespace {
// What a kernel calls for each element: F's value or derivative, with a number in it where the op has one.
template <class F> struct Value {
  template <class... T> __device__ __forceinline__ auto operator()(T... x) const { return F::f(x...); }
};
template <class F> struct Slope {  // (x, y, dy) or (saved, dy)
  template <class T> __device__ __forceinline__ T operator()(T x, T y, T g) const { return F::df(x, y) * g; }
  template <class T> __device__ __forceinline__ T operator()(T s, T g) const { return F::df(s, s) * g; }
};
template <class F, class T> struct WithNumber {
  T s;
  bool left;
  __device__ __forceinline__ T operator()(T x) const { return F::f(left ? s : x, left ? x : s); }
};
template <class F> struct Partial {
  bool by_y;
  template <class T> __device__ __forceinline__ T operator()(T x, T y, T g) const {
    return (by_y ? F::dy(x, y) : F::dx(x, y)) * g;
  }
};
template <class F, class T> struct PartialWithNumber {
  T s;
  bool left;
  __device__ __forceinline__ T operator()(T x, T g) const { return (left ? F::dy(s, x) : F::dx(x, s)) * g; }
};

// Powers are computed in double.
template <class T> constexpr bool kGrouped<WithNumber<Pow, T>> = false;
template <> constexpr bool kGrouped<Value<Pow>> = false;
template <> constexpr bool kGrouped<Partial<Pow>> = false;
template <class T> constexpr bool kGrouped<PartialWithNumber<Pow, T>> = false;

// The types that F computes in: double and float, and the integers if it takes them.
template <class F, class G> void visit_taken(DType d, G&& g) {
  if constexpr (takes_integers<F>)
    if (is_index(d)) return visit_index(d, g);
  visit_compute_type(d, g);
}
template <class F> void unary(const Unary<F>&, Bufs in, Bufs out, Context& c) {
  visit_taken<F>(out[0].dtype(), [&]<class T>() { map<T, T>(c, in, out[0], Value<F>{}); });
}
template <class F> void unary_grad(const UnaryGrad<F>&, Bufs in, Bufs out, Context& c) {
  visit_compute_type(out[0].dtype(), [&]<class T>() {
    if constexpr (UnaryGrad<F>::kDy == 2)
      map<T, T, T, T>(c, in, out[0], Slope<F>{});
    else
      map<T, T, T>(c, in, out[0], Slope<F>{});
  });
}
template <class F> void binary(const Binary<F>&, Bufs in, Bufs out, Context& c) {
  visit_taken<F>(out[0].dtype(), [&]<class T>() { map<T, T, T>(c, in, out[0], Value<F>{}); });
}
template <class F> void binary_scalar(const BinaryScalar<F>& op, Bufs in, Bufs out, Context& c) {
  visit_taken<F>(out[0].dtype(), [&]<class T>() { map<T, T>(c, in, out[0], WithNumber<F, T>{T(op.s), op.left}); });
}
template <class F> void binary_grad(const BinaryGrad<F>& op, Bufs in, Bufs out, Context& c) {
  visit_compute_type(out[0].dtype(), [&]<class T>() { map<T, T, T, T>(c, in, out[0], Partial<F>{op.by_y}); });
}
template <class F> void binary_scalar_grad(const BinaryScalarGrad<F>& op, Bufs in, Bufs out, Context& c) {
  visit_compute_type(out[0].dtype(), [&]<class T>() {
    map<T, T, T>(c, in, out[0], PartialWithNumber<F, T>{T(op.s), op.left});
  });
}

template <class F> void add_unary(const KernelOrigin& o) {
  add_kernel<Unary<F>, Backend::cuda, unary<F>>(o);
  if constexpr (!is_linear<F>) add_kernel<UnaryGrad<F>, Backend::cuda, unary_grad<F>>(o);
}
template <class F> void add_binary(const KernelOrigin& o) {
  add_kernel<Binary<F>, Backend::cuda, binary<F>>(o);
  add_kernel<BinaryScalar<F>, Backend::cuda, binary_scalar<F>>(o);
  if constexpr (has_partials<F>) {
    add_kernel<BinaryGrad<F>, Backend::cuda, binary_grad<F>>(o);
    add_kernel<BinaryScalarGrad<F>, Backend::cuda, binary_scalar_grad<F>>(o);
  }
}
constexpr KernelOrigin kPointwiseOrigin{__FILE__, __LINE__, TG_ISA_LEVEL};
template <class... U, class... B> bool add_all(TypeList<U...>, TypeList<B...>, const KernelOrigin& o) {
  (add_unary<U>(o), ...);
  (add_binary<B>(o), ...);
  return true;
}
[[maybe_unused]] const bool registered = add_all(UnaryFns{}, BinaryFns{}, kPointwiseOrigin);
}  // namespace
}  // namespace tg::cuda
