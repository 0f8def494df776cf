// Elementwise kernels: y[i] = f(x[i]...) with broadcasting, any layout and a dtype of its own for each operand; f sees
// compute types. One element per thread, or 16 bytes of the widest type where all operands are neighbours. Each index
// is read before it is written, so y may be an operand. For the elementwise .cu files of this folder.
#pragma once
#include <tapegrad/cuda/kernel.h>

namespace tg::cuda {
namespace {

template <int V, class F, class Y, class... X>
__device__ __forceinline__ void map_vector(const F& f, Y* y, const Vec<X, V>&... x) {
  Vec<Y, V> r;
#pragma unroll
  for (int k = 0; k < V; ++k) r.x[k] = narrow<Y>(f(widen(x.x[k])...));
  *reinterpret_cast<Vec<Y, V>*>(y) = r;
}
template <int V, class F, class Y, class... X> __global__ void map_dense(F f, int64_t n, Y* y, const X*... x) {
  for (GridLoop i((n + V - 1) / V); i; ++i) {
    const int64_t at = *i * V;
    if (at + V <= n)
      map_vector<V>(f, y + at, *reinterpret_cast<const Vec<X, V>*>(x + at)...);
    else
      for (int64_t k = at; k < n; ++k) y[k] = narrow<Y>(f(widen(x[k])...));
  }
}
template <class F, class Y, class... X, size_t... K>
__device__ __forceinline__ Y map_at(const F& f, const int64_t* at, std::index_sequence<K...>, const X*... x) {
  return narrow<Y>(f(widen(x[at[K]])...));
}
template <class F, class Y, class... X>
__global__ void map_strided(F f, Strided<sizeof...(X)> walk, int64_t n, Y* y, const X*... x) {
  for (GridLoop i(n); i; ++i) {
    int64_t at[sizeof...(X)];
    walk.offsets(*i, at);
    y[*i] = map_at<F, Y, X...>(f, at, std::index_sequence_for<X...>(), x...);
  }
}

// out[0][i] = f(in[0][i], ...): Y and X... are the stored types, out is contiguous. F is a struct with a __device__
// call operator on compute types (a lambda would need a compiler option of nvcc).
template <class Y, class... X, class F, size_t... K>
void map_impl(const Context& c, Bufs in, const Buf& out, F f, std::index_sequence<K...>) {
  constexpr int kThreads = 256;
  constexpr size_t kWidest = std::max({sizeof(Y), sizeof(X)...});
  constexpr int V = int(16 / kWidest);
  const int64_t n = out.numel();
  if (n == 0) return;
  Y* y = out.data<Y>();
  const Strided<sizeof...(X)> walk(out.shape(), {broadcast_strides(*in[K].layout, out.shape())...});
  // Vec<T, V> is as aligned as it is large
  const auto aligned = [](const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  const bool dense = walk.contiguous() && aligned(y, V * sizeof(Y)) && (aligned(in[K].data<X>(), V * sizeof(X)) && ...);
  if (dense)
    launch(c, map_dense<V, F, Y, X...>, blocks_for(c, n, kThreads * V), kThreads, 0, f, n, y, in[K].data<X>()...);
  else
    launch(c, map_strided<F, Y, X...>, blocks_for(c, n, kThreads), kThreads, 0, f, walk, n, y, in[K].data<X>()...);
}
template <class Y, class... X, class F> void map(const Context& c, Bufs in, const Buf& out, F f) {
  map_impl<Y, X...>(c, in, out, f, std::index_sequence_for<X...>());
}

}  // namespace
}  // namespace tg::cuda
