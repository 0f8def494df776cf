// Thread (ty, tx) of 16 x 16 has rows [ty R, ty R + R): 16 adjacent lanes share a row. Accumulators are of T's compute
// type.
#pragma once
#include <tapegrad/cuda/attention/attention_kernels.h>

namespace tg::cuda {
namespace {
constexpr int kSide = 16, kThreads = kSide * kSide;

__device__ __forceinline__ float power2(float x) { return exp2f(x); }
__device__ __forceinline__ double power2(double x) { return exp2(x); }
__device__ __forceinline__ float logarithm2(float x) { return log2f(x); }
__device__ __forceinline__ double logarithm2(double x) { return log2(x); }

// Padding against bank conflicts: 16 bytes per row.
template <class C, int N> constexpr int kStep = N + kVec<C>;
// A thread's N / 16 columns: (tx + 16 j) * W + w, w < W.
template <class C, int N> constexpr int kWide = N / kSide % kVec<C> == 0 ? kVec<C> : N / kSide % 2 == 0 ? 2 : 1;

template <int kRows, int D, class T, class C>
__device__ __forceinline__ void load_tile(C* to, const HeadRows<const T>& from, int64_t first, int64_t rows,
                                          int64_t hs) {
  constexpr int V = kVec<T>, kParts = D / V, kChunk = V < kVec<C> ? V : kVec<C>;
  for (int i = threadIdx.x; i < kRows * kParts; i += kThreads) {
    const int r = i / kParts, d = i % kParts * V;
    const bool inside = first + r < rows;
    const T* p = from.p + (first + r) * from.row;
    Vec<T> x;
    if (from.vectors && inside && d < hs) {
      x = load16(p + d);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) x.x[v] = inside && d + v < hs ? p[(d + v) * from.col] : narrow<T>(0);
    }
#pragma unroll
    for (int v = 0; v < V; v += kChunk) {
      Vec<C, kChunk> y;
#pragma unroll
      for (int w = 0; w < kChunk; ++w) y.x[w] = widen(x.x[v + w]);
      store16_shared(to + r * kStep<C, D> + d + v, y);
    }
  }
}
template <int R, int N, class C> __device__ __forceinline__ void clear(C (&o)[R][N]) {
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int n = 0; n < N; ++n) o[r][n] = 0;
}
// s[r][n] = row ty R + r of a times row tx + 16 n of b, over D columns.
template <int D, int R, int N, class C>
__device__ __forceinline__ void multiply_rows(C (&s)[R][N], const C* a, const C* b) {
  constexpr int V = kVec<C>;
  a += int(threadIdx.x) / kSide * R * kStep<C, D>;
  b += int(threadIdx.x) % kSide * kStep<C, D>;
  clear(s);
#pragma unroll 2
  for (int d = 0; d < D; d += V) {
    Vec<C> y[N];
#pragma unroll
    for (int n = 0; n < N; ++n) y[n] = load16(b + n * kSide * kStep<C, D> + d);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const auto x = load16(a + r * kStep<C, D> + d);
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int v = 0; v < V; ++v) s[r][n] += x.x[v] * y[n].x[v];
    }
  }
}
// p[ty R + r][tx + 16 n] = s[r][n], read by lanes of one warp: __syncwarp() is enough.
template <int R, int N, class C> __device__ __forceinline__ void store_weights(C* p, const C (&s)[R][N]) {
  p += int(threadIdx.x) / kSide * R * kStep<C, N * kSide> + int(threadIdx.x) % kSide;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int n = 0; n < N; ++n) p[r * kStep<C, N * kSide> + n * kSide] = s[r][n];
  __syncwarp();
}
// o[r][j] += row ty R + r of p (K weights) . the thread's column j of b.
template <int K, int D, int R, class C>
__device__ __forceinline__ void add_weighted(C (&o)[R][D / kSide], const C* p, const C* b) {
  constexpr int V = kVec<C>, W = kWide<C, D>, kColumns = D / kSide / W;
  p += int(threadIdx.x) / kSide * R * kStep<C, K>;
  b += int(threadIdx.x) % kSide * W;
#pragma unroll 1
  for (int k = 0; k < K; k += V) {
    Vec<C> x[R];
#pragma unroll
    for (int r = 0; r < R; ++r) x[r] = load16(p + r * kStep<C, K> + k);
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const auto y = load16<W>(b + (k + v) * kStep<C, D> + j * kSide * W);
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
          for (int w = 0; w < W; ++w) o[r][j * W + w] += x[r].x[v] * y.x[w];
      }
  }
}
template <int D, int R, class T, class C>
__device__ __forceinline__ void store_tile(const HeadRows<T>& to, const C (&o)[R][D / kSide], const C (&factor)[R],
                                           int64_t first, int64_t rows, int64_t hs) {
  constexpr int W = kWide<C, D>, kColumns = D / kSide / W;
  const int tx = int(threadIdx.x) % kSide;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int64_t row = first + int(threadIdx.x) / kSide * R + r;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int d = (tx + j * kSide) * W;
      if (d >= hs) continue;
      Vec<T, W> x;
#pragma unroll
      for (int w = 0; w < W; ++w) x.x[w] = narrow<T>(o[r][j * W + w] * factor[r]);
      T* p = to.p + row * to.row + d * to.col;
      if (to.vectors) {
        store16(p, x);
      } else {
#pragma unroll
        for (int w = 0; w < W; ++w)
          if (d + w < hs) p[w * to.col] = x.x[w];
      }
    }
  }
}
// s *= mask: rows are queries from i on, columns keys from k0 on. Four lanes draw four elements' blocks.
template <int R, int N, bool kDrops, class C>
__device__ __forceinline__ void drop_rows(C (&s)[R][N], const HeadMask<kDrops, C>& mask, int64_t i, int64_t k0) {
  if constexpr (!kDrops) return;
  constexpr int kAll = R * N;
  const int lane = int(threadIdx.x) % 4, quad = int(threadIdx.x) % kSide / 4;
#pragma unroll
  for (int e = 0; e < kAll; e += 4) {
    const int own = (e + lane) % kAll;
    const Words w = across_blocks<1>(mask.words(i + own / N, k0 / 4 + own % N * (kSide / 4) + quad));
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (e + j < kAll) s[(e + j) / N][(e + j) % N] *= mask(tg::detail::word_of(w, uint64_t(j)));
  }
}
// Reduces v over the 16 lanes that share a row.
template <class Op, class C> __device__ __forceinline__ C over_row(C v, Op op = {}) {
#pragma unroll
  for (int d = kSide / 2; d > 0; d /= 2) v = op(v, __shfl_xor_sync(~0u, v, d));
  return v;
}

}  // namespace
}  // namespace tg::cuda
