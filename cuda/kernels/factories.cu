// Functions of (seed, position), with the bits of the CPU. A thread draws one block of four words.
#include <tapegrad/cuda/device/step_values.h>
#include <tapegrad/ops/factories.h>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

template <class U> __global__ void full_values(U value, int64_t vectors, int64_t n, U* y) {
  constexpr int V = kVec<U>;
  Vec<U> all;
#pragma unroll
  for (int k = 0; k < V; ++k) all.x[k] = value;
  for (GridLoop i(vectors); i; ++i) store16(y + *i * V, all);
  for (GridLoop i(n - vectors * V); i; ++i) y[vectors * V + *i] = value;
}
void full(const op::Full& op, Bufs, Bufs out, Context& c) {
  const int64_t n = out[0].numel();
  if (n == 0) return;
  visit_bits(out[0].dtype(), op.value, [&]<class U>(U value) {
    U* y = out[0].raw<U>();
    const int64_t vectors = aligned16(y) ? n / kVec<U> : 0;
    launch(c, full_values<U>, blocks_for(c, std::max(vectors, n - vectors * kVec<U>), kThreads), kThreads, 0, value,
           vectors, n, y);
  });
}

template <class T> __global__ void arange_values(double start, double step, int64_t n, T* y) {
  for (GridLoop i(n); i; ++i) y[*i] = narrow<T>(compute_t<T>(start + double(*i) * step));
}
void arange(const op::Arange& op, Bufs, Bufs out, Context& c) {
  const int64_t n = out[0].numel();
  if (n == 0) return;
  visit_dtype(out[0].dtype(), [&]<class T>() {
    launch(c, arange_values<T>, blocks_for(c, n, kThreads), kThreads, 0, op.start, op.step, n, out[0].data<T>());
  });
}

template <op::Distribution D> __device__ __forceinline__ void values_of(Words w, float (&v)[4]) {
  if constexpr (D == op::Distribution::normal) {
    tg::detail::normal_pair(w.x, w.y, v[0], v[1]);
    tg::detail::normal_pair(w.z, w.w, v[2], v[3]);
  } else {
    const auto f = [](auto word) {
      return D == op::Distribution::uniform ? tg::detail::uniform(word) : tg::detail::truncated_normal(word);
    };
    v[0] = f(w.x), v[1] = f(w.y), v[2] = f(w.z), v[3] = f(w.w);
  }
}
// y[i] = shift + scale * value, rounded to float, then T. Uniform values stay below the upper bound.
template <class T, op::Distribution D>
__global__ void random_values(StepValue<Rng> state, float scale, float shift, float below,
                              tg::detail::DrawnRange<T> inside, bool aligned, int64_t n, T* y) {
  const Rng at = state.get();
  for (GridLoop b((n + 3) / 4); b; ++b) {
    float v[4];
    values_of<D>(tg::detail::random_block(at, uint64_t(*b)), v);
    Vec<T, 4> r;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float x = math::detail::fma(v[k], scale, shift);
      if constexpr (D == op::Distribution::uniform)
        r.x[k] = narrow<T>(inside(compute_t<T>(widen(narrow<T>(compute_t<T>(x < below ? x : below))))));
      else
        r.x[k] = narrow<T>(compute_t<T>(x));
    }
    T* to = y + *b * 4;
    if (aligned && *b * 4 + 4 <= n) {
      store16(to, r);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (*b * 4 + k < n) to[k] = r.x[k];
    }
  }
}
template <op::Distribution D> void random(const op::Random<D>& op, Bufs, Bufs out, Context& c) {
  const int64_t n = out[0].numel();
  if (n == 0) return;
  const bool uniform = D == op::Distribution::uniform;
  const float scale = uniform ? float(op.b) - float(op.a) : float(op.b), shift = float(op.a);
  const StepValue<Rng> state(op, [](const op::Random<D>& now) { return now.rng; });
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    T* y = out[0].data<T>();
    launch(c, random_values<T, D>, blocks_for(c, (n + 3) / 4, kThreads), kThreads, 0, state, scale, shift,
           tg::detail::below_of(float(op.a), float(op.b)), tg::detail::DrawnRange<T>(op.a, op.b), aligned16(y), n, y);
  });
}
TG_STRIDED_KERNEL(op::Full, cuda, full);
TG_STRIDED_KERNEL(op::Arange, cuda, arange);
TG_STRIDED_KERNEL(op::RandomNormal, cuda, random);
TG_STRIDED_KERNEL(op::RandomTruncatedNormal, cuda, random);
TG_STRIDED_KERNEL(op::RandomUniform, cuda, random);
}  // namespace
}  // namespace tg::cuda
