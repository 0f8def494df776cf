// Kernels of ops/swiglu.h: a row at a time, each half read and written once.
#include <tapegrad/core/math.h>
#include <tapegrad/cpu/kernel.h>
#include <tapegrad/ops/swiglu.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class T> void forward_row(int64_t n, const T* x, T* y) {
  using C = compute_t<T>;
  TG_SAME_INDEX
  for (int64_t j = 0; j < n; ++j) {
    const C gate = C(x[j]);
    y[j] = T(gate * math::sigmoid(gate) * C(x[n + j]));
  }
}
// dx may be x.
template <class T> void backward_row(int64_t n, const T* x, const T* dy, T* dx) {
  using C = compute_t<T>;
  TG_SAME_INDEX
  for (int64_t j = 0; j < n; ++j) {
    const C gate = C(x[j]), value = C(x[n + j]), grad = C(dy[j]), s = math::sigmoid(gate);
    dx[j] = T(grad * value * s * (C(1) + gate * (C(1) - s)));
    dx[n + j] = T(grad * gate * s);
  }
}
void swiglu(const op::Swiglu&, Bufs in, Bufs out, Context&) {
  for_each_row({in[0]}, out[0], [](int64_t n, auto* y, const auto* x) { forward_row(n, x, y); });
}
void swiglu_grad(const op::SwigluGrad&, Bufs in, Bufs out, Context&) {
  for_each_row({in[0], in[1]}, out[0],
               [](int64_t n, auto* dx, const auto* x, const auto* dy) { backward_row(n / 2, x, dy, dx); });
}
TG_STRIDED_KERNEL(op::Swiglu, cpu, swiglu);
TG_STRIDED_KERNEL(op::SwigluGrad, cpu, swiglu_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
