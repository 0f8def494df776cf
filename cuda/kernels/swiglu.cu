// Rows (2F), gate first. A thread has V adjacent elements of both halves.
#include <tapegrad/cuda/device/kernel.h>
#include <tapegrad/ops/swiglu.h>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;
template <class T> constexpr int kCtas = sizeof(T) == 8 ? 4 : 6;  // blocks per SM

// Offset of group g in x (rows, 2F); in y (rows, F) it is g V.
template <int V> __device__ __forceinline__ int64_t gate_at(int64_t g, int64_t f) {
  const int64_t row = g >> 32 == 0 ? uint32_t(g) / uint32_t(f / V) : g / (f / V);
  return g * V + row * f;
}
template <class T, int V>
__global__ void __launch_bounds__(kThreads, kCtas<T>) swiglu_forward(int64_t groups, int64_t f, const T* x, T* y) {
  using C = compute_t<T>;
  for (GridLoop g(groups); g; ++g) {
    const int64_t at = gate_at<V>(*g, f);
    const auto gates = load16<V>(x + at), values = load16<V>(x + at + f);
    Vec<T, V> r;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const C gate = widen(gates.x[k]);
      r.x[k] = narrow<T>(gate * sigmoid_for<T>(gate) * widen(values.x[k]));
    }
    store16(y + *g * V, r);
  }
}
// dx may alias x.
template <class T, int V>
__global__ void __launch_bounds__(kThreads, kCtas<T>)
    swiglu_grad(int64_t groups, int64_t f, const T* x, const T* dy, T* dx) {
  using C = compute_t<T>;
  for (GridLoop g(groups); g; ++g) {
    const int64_t at = gate_at<V>(*g, f);
    const auto gates = load16<V>(x + at), values = load16<V>(x + at + f);
    const auto grads = load16<V>(dy + *g * V);
    Vec<T, V> dgate, dvalue;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const C gate = widen(gates.x[k]), value = widen(values.x[k]), grad = widen(grads.x[k]);
      const C s = sigmoid_for<T>(gate);
      dgate.x[k] = narrow<T>(grad * value * s * (C(1) + gate * (C(1) - s)));
      dvalue.x[k] = narrow<T>(grad * gate * s);
    }
    store16(dx + at, dgate);
    store16(dx + at + f, dvalue);
  }
}

void swiglu(const op::Swiglu&, Bufs in, Bufs out, Context& c) {
  const int64_t n = out[0].numel(), f = out[0].shape().back();
  if (n == 0) return;
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    constexpr int V = kVec<T>;
    const Dense<T> x(c, in[0]);
    T* y = out[0].data<T>();
    const bool vectors = f % V == 0 && aligned16(x) && aligned16(y);
    const int64_t groups = vectors ? n / V : n;
    launch(c, vectors ? swiglu_forward<T, V> : swiglu_forward<T, 1>, blocks_for(c, groups, kThreads), kThreads, 0,
           groups, f, x, y);
  });
}
void swiglu_grad(const op::SwigluGrad&, Bufs in, Bufs out, Context& c) {
  const int64_t n = in[1].numel(), f = in[1].shape().back();
  if (n == 0) return;
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    constexpr int V = kVec<T>;
    const Dense<T> x(c, in[0]), dy(c, in[1]);
    T* dx = out[0].data<T>();
    const bool vectors = f % V == 0 && aligned16(x) && aligned16(dy) && aligned16(dx);
    const int64_t groups = vectors ? n / V : n;
    launch(c, vectors ? swiglu_grad<T, V> : swiglu_grad<T, 1>, blocks_for(c, groups, kThreads), kThreads, 0, groups, f,
           x, dy, dx);
  });
}
TG_STRIDED_KERNEL(op::Swiglu, cuda, swiglu);
TG_STRIDED_KERNEL(op::SwigluGrad, cuda, swiglu_grad);
}  // namespace
}  // namespace tg::cuda
