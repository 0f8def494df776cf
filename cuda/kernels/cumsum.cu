// A warp per chunk of a row, a thread per chunk of a column; chunks start from the scan of earlier totals. The order of
// additions depends on the sizes alone.
#include <tapegrad/ops/reduce.h>

#include <tapegrad/cuda/device/kernel.h>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256, kWarp = 32;

// Every element rounds, so f32 accumulates in f64. Integers wrap.
template <class T>
using Acc = std::conditional_t<std::is_integral_v<T>, uint64_t,
                               std::conditional_t<std::is_same_v<T, float>, double, compute_t<T>>>;
template <class T> __device__ __forceinline__ Acc<T> widened(T x) { return Acc<T>(widen(x)); }
template <class T> __device__ __forceinline__ T rounded(Acc<T> sum) { return narrow<T>(compute_t<T>(sum)); }

struct Lines {  // (outer, n, inner), contiguous
  int64_t outer, n, inner, chunk, chunks;
  bool reverse;
  __host__ __device__ int64_t tasks() const { return outer * chunks * inner; }
};
struct Part {
  int64_t begin, end, first, step;
  __device__ __forceinline__ Part(const Lines& l, int64_t t) {
    const int64_t before = t / l.inner, o = before / l.chunks;
    begin = (before - o * l.chunks) * l.chunk;
    end = std::min(l.n, begin + l.chunk);
    step = l.reverse ? -l.inner : l.inner;
    first = o * l.n * l.inner + (t - before * l.inner) + (l.reverse ? (l.n - 1) * l.inner : 0);
  }
  __device__ __forceinline__ int64_t at(int64_t i) const { return first + i * step; }
};

template <class T> __global__ void cumsum_row_totals(Lines l, const T* x, Acc<T>* totals) {
  for (GridLoop i(l.tasks() * kWarp); i; ++i) {
    const int64_t t = *i / kWarp;
    const Part p(l, t);
    Acc<T> sum = 0;
    for (int64_t j = p.begin + *i % kWarp; j < p.end; j += kWarp) sum += widened(x[p.at(j)]);
    sum = warp_all<SumOp>(sum);
    if (*i % kWarp == 0) totals[t] = sum;
  }
}
// before: scan of totals; null for one chunk. x may alias y.
template <class T> __global__ void cumsum_row_scan(Lines l, const T* x, T* y, const Acc<T>* before) {
  for (GridLoop i(l.tasks() * kWarp); i; ++i) {
    const int64_t t = *i / kWarp;
    const int lane = int(*i % kWarp);
    const Part p(l, t);
    Acc<T> sum = p.begin > 0 ? before[t - 1] : Acc<T>(0);
    for (int64_t j = p.begin; j < p.end; j += kWarp) {
      const bool in = j + lane < p.end;
      Acc<T> v = in ? widened(x[p.at(j + lane)]) : Acc<T>(0);
#pragma unroll
      for (int d = 1; d < kWarp; d *= 2) {
        const Acc<T> lower = __shfl_up_sync(~0u, v, unsigned(d));
        if (lane >= d) v += lower;
      }
      v += sum;
      if (in) y[p.at(j + lane)] = rounded<T>(v);
      sum = __shfl_sync(~0u, v, kWarp - 1);
    }
  }
}
template <class T> __global__ void cumsum_column_totals(Lines l, const T* x, Acc<T>* totals) {
  for (GridLoop t(l.tasks()); t; ++t) {
    const Part p(l, *t);
    Acc<T> sum = 0;
    for (int64_t j = p.begin; j < p.end; ++j) sum += widened(x[p.at(j)]);
    totals[*t] = sum;
  }
}
template <class T> __global__ void cumsum_column_scan(Lines l, const T* x, T* y, const Acc<T>* before) {
  for (GridLoop t(l.tasks()); t; ++t) {
    const Part p(l, *t);
    Acc<T> sum = p.begin > 0 ? before[*t - l.inner] : Acc<T>(0);
    for (int64_t j = p.begin; j < p.end; ++j) {
      sum += widened(x[p.at(j)]);
      y[p.at(j)] = rounded<T>(sum);
    }
  }
}

template <class T>
void scan(const Context& c, const T* x, T* y, int64_t outer, int64_t n, int64_t inner, bool reverse) {
  constexpr int64_t kChunk = 1024, kShort = 256, kManyColumns = 1 << 16;
  const bool rows = inner == 1;
  const int64_t chunk = rows ? kChunk : outer * inner < kManyColumns ? kShort : n;
  const Lines l{outer, n, inner, chunk, (n + chunk - 1) / chunk, reverse};
  const unsigned blocks = blocks_for(c, l.tasks() * (rows ? kWarp : 1), kThreads);
  std::optional<Scratch> before;
  if (l.chunks > 1) {
    auto* totals = before.emplace(c, size_t(l.tasks()) * sizeof(Acc<T>)).template as<Acc<T>>();
    launch(c, rows ? cumsum_row_totals<T> : cumsum_column_totals<T>, blocks, kThreads, 0, l, x, totals);
    scan(c, totals, totals, outer, l.chunks, inner, false);
  }
  launch(c, rows ? cumsum_row_scan<T> : cumsum_column_scan<T>, blocks, kThreads, 0, l, x, y,
         before ? before->template as<Acc<T>>() : nullptr);
}
void cumsum(const op::Cumsum& op, Bufs in, Bufs out, Context& c) {
  const Shape& s = out[0].shape();
  if (out[0].numel() == 0) return;
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < op.dim; ++d) outer *= s[d];
  for (size_t d = op.dim + 1; d < s.size(); ++d) inner *= s[d];
  kernel::visit_number(out[0].dtype(), [&]<class T>() {
    scan<T>(c, Dense<T>(c, in[0]), out[0].data<T>(), outer, s[op.dim], inner, op.reverse);
  });
}
TG_STRIDED_KERNEL(op::Cumsum, cuda, cumsum);
}  // namespace
}  // namespace tg::cuda
