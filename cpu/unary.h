/// @file
/// Kernels of unary functions (ops/pointwise.h): cpu/kernels/pointwise.cpp instantiates tapegrad's, TG_UNARY_OP(F, cpu)
/// a user-defined one.
#pragma once
#include <tapegrad/cpu/kernel.h>
#include <tapegrad/ops/pointwise.h>

namespace tg::cpu::TG_ISA_NS {

/// Kernel of op::Unary<F>, any strides: f64, f32, bf16, and integers if F takes them.
template <class F> void unary(const op::Unary<F>&, Bufs in, Bufs out, Context&) {
  if constexpr (op::takes_integers<F>)
    if (is_index(out[0].dtype()))
      return kernel::visit_index(out[0].dtype(), [&]<class T>() { map<T, T>(in, out, [](T x) { return F::f(x); }); });
  for_each({in[0]}, out[0], [](auto x) { return F::f(x); });
}
/// Kernel of op::UnaryGrad<F>, any strides.
template <class F> void unary_grad(const op::UnaryGrad<F>&, Bufs in, Bufs out, Context&) {
  if constexpr (op::UnaryGrad<F>::kDy == 2)
    for_each({in[0], in[1], in[2]}, out[0], [](auto x, auto y, auto g) { return F::df(x, y) * g; });
  else
    for_each({in[0], in[1]}, out[0], [](auto saved, auto g) { return F::df(saved, saved) * g; });
}
/// Registers the kernels of F and its gradient.
template <class F> bool add_unary(const KernelOrigin& o) {
  if constexpr (!op::is_linear<F>) tg::detail::add_kernel<op::UnaryGrad<F>, Backend::cpu, unary_grad<F>>(o);
  return tg::detail::add_kernel<op::Unary<F>, Backend::cpu, unary<F>>(o);
}

}  // namespace tg::cpu::TG_ISA_NS
