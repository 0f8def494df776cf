// Offsets in the contiguous output are row-major positions. A thread draws V / 4 random blocks.
#include <tapegrad/cuda/device/step_values.h>
#include <tapegrad/ops/training/dropout.h>

#include <algorithm>
#include <cmath>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

template <int V> __device__ __forceinline__ void draw(Rng at, int64_t group, int32_t (&word)[V]) {
#pragma unroll
  for (int b = 0; b < V / 4; ++b) {
    const Words w = tg::detail::random_block(at, uint64_t(group) * (V / 4) + b);
    word[4 * b] = int32_t(w.x >> 8), word[4 * b + 1] = int32_t(w.y >> 8);
    word[4 * b + 2] = int32_t(w.z >> 8), word[4 * b + 3] = int32_t(w.w >> 8);
  }
}
// y may alias x.
template <class T, int V>
__global__ void dropout_values(StepValue<Rng> state, int32_t limit, compute_t<T> scale, Strided<1> walk, bool vectors,
                               int64_t n, const T* x, T* y) {
  using C = compute_t<T>;
  const Rng at = state.get();
  for (GridLoop g((n + V - 1) / V); g; ++g) {
    int32_t word[V];
    draw(at, *g, word);
    const int64_t i = *g * V;
    if (vectors && i + V <= n) {
      auto v = load16<V>(x + i);
#pragma unroll
      for (int k = 0; k < V; ++k) v.x[k] = narrow<T>(word[k] < limit ? C(0) : widen(v.x[k]) * scale);
      store16(y + i, v);
    } else {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        if (i + k >= n) break;
        int64_t from[1];
        walk.offsets(i + k, from);
        y[i + k] = narrow<T>(word[k] < limit ? C(0) : widen(x[from[0]]) * scale);
      }
    }
  }
}
void dropout(const op::Dropout& op, Bufs in, Bufs out, Context& c) {
  const int64_t n = out[0].numel();
  if (n == 0) return;
  // uniform(word) < p, in units of 2^-24.
  const auto limit = int32_t(std::ceil(op.p * 0x1p24));
  const StepValue<Rng> state(op, [](const op::Dropout& now) { return now.rng; });
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    constexpr int V = std::max(4, kVec<T>);
    const T* x = in[0].data<T>();
    T* y = out[0].data<T>();
    const Strided<1> walk(in[0].shape(), {in[0].strides()});
    const bool vectors = walk.contiguous() && aligned16(x) && aligned16(y);
    launch(c, dropout_values<T, V>, blocks_for(c, (n + V - 1) / V, kThreads), kThreads, 0, state, limit,
           compute_t<T>(1 / (1 - op.p)), walk, vectors, n, x, y);
  });
}
TG_STRIDED_KERNEL(op::Dropout, cuda, dropout);
}  // namespace
}  // namespace tg::cuda
