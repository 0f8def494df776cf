#include <tapegrad/cuda/device/multi_tensor.h>
#include <tapegrad/cuda/device/rank_parts.h>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

template <class From, class To, int kMost>
__global__ void __launch_bounds__(kThreads)
    copy_chunks(const __grid_constant__ Batch<Segment, kMost> batch, int64_t chunks) {
  constexpr int V = kVec<From>;
  for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    const int k = batch.find(c);
    const Segment& p = batch.item[k];
    const int64_t begin = (c - batch.first[k]) * batch.chunk;  // 16-byte aligned
    const int n = int(std::min(p.n - begin, batch.chunk));
    const From* from = static_cast<const From*>(p.from) + begin;
    To* to = static_cast<To*>(p.to) + begin;
    const bool aligned =
        reinterpret_cast<uintptr_t>(from) % 16 == 0 && reinterpret_cast<uintptr_t>(to) % (V * sizeof(To)) == 0;
    const int scalars = aligned ? n / V * V : 0;
    for (int i = int(threadIdx.x) * V; i < scalars; i += kThreads * V) {
      const auto x = load16(from + i);
      Vec<To, V> y;
#pragma unroll
      for (int j = 0; j < V; ++j) y.x[j] = To(x.x[j]);
      store16(to + i, y);
    }
    for (int i = scalars + int(threadIdx.x); i < n; i += kThreads) to[i] = To(from[i]);
  }
}
template <class From, class To> void copy_all(const Context& c, const std::vector<Segment>& all) {
  constexpr int kMany = 500;
  static_assert(sizeof(Batch<Segment, kMany>) + sizeof(int64_t) <= kMostParameters);
  for_batches<Segment, kMany>(all, batch_chunk(all), [&]<int kMost>(const Batch<Segment, kMost>& b, size_t) {
    launch(c, copy_chunks<From, To, kMost>, blocks_for(c, b.chunks(), 1), kThreads, 0, b, b.chunks());
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_vectors(int64_t n, int ranks, int64_t stride, const T* parts, compute_t<T>* sums) {
  constexpr int V = kVec<T>;
  for (GridLoop i((n + V - 1) / V); i; ++i) {
    const int64_t at = *i * V;
    if (at + V > n) {
#pragma unroll 1
      for (int64_t j = at; j < n; ++j) {
        compute_t<T> sum = widen(parts[j]);
#pragma unroll 1
        for (int r = 1; r < ranks; ++r) sum += widen(parts[r * stride + j]);
        sums[j] = sum;
      }
      continue;
    }
    Vec<compute_t<T>, V> sum;
    const auto first = load16(parts + at);
#pragma unroll
    for (int k = 0; k < V; ++k) sum.x[k] = widen(first.x[k]);
#pragma unroll 2
    for (int r = 1; r < ranks; ++r) {
      const auto next = load16(parts + r * stride + at);
#pragma unroll
      for (int k = 0; k < V; ++k) sum.x[k] += widen(next.x[k]);
    }
    store16(sums + at, sum);
  }
}
}  // namespace

void copy_segments(const Context& c, const std::vector<Segment>& all, size_t element) {
  element == 8   ? copy_all<uint64_t, uint64_t>(c, all)
  : element == 4 ? copy_all<uint32_t, uint32_t>(c, all)
                 : copy_all<uint16_t, uint16_t>(c, all);
}
void round_segments(const Context& c, const std::vector<Segment>& all) { copy_all<float, bf16>(c, all); }
void add_parts(const Context& c, DType t, int64_t n, int ranks, int64_t stride, const void* parts, void* to) {
  const auto run = [&]<class T>(T) {
    launch(c, add_vectors<T>, blocks_for(c, (n + kVec<T> - 1) / kVec<T>, kThreads), kThreads, 0, n, ranks, stride,
           static_cast<const T*>(parts), static_cast<compute_t<T>*>(to));
  };
  if (t == DType::f64) return run(double());
  if (t == DType::f32) return run(float());
  if (t == DType::bf16) return run(bf16());
  run(int64_t());
}
}  // namespace tg::cuda
