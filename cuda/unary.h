/// @file
/// Kernels of a function of one operand (ops/pointwise.h), for .cu files: tapegrad's in cuda/kernels/pointwise.cu,
/// and others by TG_UNARY_OP(F, cuda).
#pragma once
#include <tapegrad/cuda/device/map.h>
#include <tapegrad/ops/pointwise.h>

namespace tg::cuda {
namespace {
template <class F> struct Value {
  template <class T, class... Y> __device__ __forceinline__ static T f(Scalars<T>, T x, Y... y) {
    return F::f(x, y...);
  }
};
template <class F> struct Slope {  // (x, y, dy) or (saved, dy)
  template <class T> __device__ __forceinline__ static T f(Scalars<T>, T x, T y, T g) { return F::df(x, y) * g; }
  template <class T> __device__ __forceinline__ static T f(Scalars<T>, T s, T g) { return F::df(s, s) * g; }
};

template <class F> void unary(const op::Unary<F>&, Bufs in, Bufs out, Context& c) {
  const auto run = [&]<class T>() { map<Value<F>, T, T>(c, in, out[0]); };
  if constexpr (op::takes_integers<F>)
    if (is_index(out[0].dtype())) return kernel::visit_index(out[0].dtype(), run);
  visit_computed(out[0].dtype(), run);
}
template <class F> void unary_grad(const op::UnaryGrad<F>&, Bufs in, Bufs out, Context& c) {
  visit_computed(out[0].dtype(), [&]<class T>() {
    if constexpr (op::UnaryGrad<F>::kDy == 2)
      map<Slope<F>, T, T, T, T>(c, in, out[0]);
    else
      map<Slope<F>, T, T, T>(c, in, out[0]);
  });
}
/// Registers value and gradient of F on CUDA.
template <class F> bool add_unary(const KernelOrigin& o) {
  if constexpr (!op::is_linear<F>) tg::detail::add_kernel<op::UnaryGrad<F>, Backend::cuda, unary_grad<F>>(o);
  return tg::detail::add_kernel<op::Unary<F>, Backend::cuda, unary<F>>(o);
}
}  // namespace

}  // namespace tg::cuda
