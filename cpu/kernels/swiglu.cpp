#include <tapegrad/cpu/kernel.h>
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/ops/swiglu.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class V> inline V sigmoid(const V& x) { return 1.0f / (1.0f + exp_to_zero(V(-x))); }
template <class T> void forward_row(int64_t n, const T* x, T* y) {
  for_lanes<compute_t<T>>(n, [=]<class V>(int64_t j) {
    const V gate = load<V>(x + j);
    store(y + j, V(gate * sigmoid(gate) * load<V>(x + n + j)));
  });
}
// dx may be x.
template <class T> void backward_row(int64_t n, const T* x, const T* dy, T* dx) {
  using C = compute_t<T>;
  for_lanes<C>(n, [=]<class V>(int64_t j) {
    const V gate = load<V>(x + j), value = load<V>(x + n + j), grad = load<V>(dy + j), s = sigmoid(gate);
    store(dx + j, V(grad * value * s * (C(1) + gate * (C(1) - s))));
    store(dx + n + j, V(grad * gate * s));
  });
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
