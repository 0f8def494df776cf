// (n, k) matrices: a warp reads along kLines lines at once; warps split the terms. (k, n) matrices: a lane has 16 bytes
// of columns, warps split the lines of a segment of k; a second kernel reduces segments.
#include <tapegrad/cuda/device/small_m.h>

#include <algorithm>

namespace tg::cuda {
namespace {
template <int kRows> struct RowList {
  int count;
  int32_t row[kRows];
};
struct OneMatrix {
  __device__ __forceinline__ bool of(int64_t, int64_t) const { return true; }
  __device__ __forceinline__ bool any(int64_t) const { return true; }
};
struct Named {
  NamedMatrices all;
  int64_t first;  // first matrix of this launch
  __device__ __forceinline__ bool of(int64_t row, int64_t matrix) const { return all.index[row] == first + matrix; }
  __device__ __forceinline__ bool any(int64_t row) const { return all.check.inside(all.index[row]); }
};
// kRows rows from `from` on; returns where to continue. For all threads.
template <int kRows, class Which>
__device__ __forceinline__ int64_t next_rows(const Which& which, int64_t matrix, int64_t from, int64_t rows,
                                             RowList<kRows>& list, int64_t& next) {
  __syncthreads();  // the list is read
  if (threadIdx.x < 32) {
    int found = 0;
    int64_t i = from;
    for (; i < rows && found < kRows; i += 32) {
      const int64_t row = i + threadIdx.x;
      const bool mine = row < rows && which.of(row, matrix);
      const unsigned all = __ballot_sync(~0u, mine);
      const int before = __popc(all & ((1u << threadIdx.x) - 1)), place = found + before;
      if (mine && place < kRows) list.row[place] = int32_t(row);
      if (mine && place == kRows - 1) next = row + 1;
      found += __popc(all);
    }
    if (threadIdx.x == 0) {
      list.count = found < kRows ? found : kRows;
      if (found < kRows) next = rows;
    }
  }
  __syncthreads();
  return next;
}

constexpr int kLines = 4, kTransposedWarps = 4;
template <class T, int V, int kRows, class Which>
__global__ void __launch_bounds__(kTransposedWarps * 32)
    small_m_transposed(SmallM<T> p, int64_t step, const __grid_constant__ Which which) {
  using C = compute_t<T>;
  __shared__ RowList<kRows> list;
  __shared__ int64_t next;
  __shared__ C part[kTransposedWarps][kLines * kRows];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t first = int64_t(blockIdx.x) * kLines, lines = min(int64_t(kLines), p.n - first);
  const T* matrix = p.matrix + int64_t(blockIdx.y) * step + first * p.ld;
  for (int64_t from = 0; from < p.rows;) {
    from = next_rows<kRows>(which, int64_t(blockIdx.y), from, p.rows, list, next);
    const int count = list.count;
    if (count == 0) break;
    C sum[kLines][kRows] = {};
#pragma unroll(kRows > 4 ? 1 : 2)
    for (int64_t i = int64_t(threadIdx.x) * V; i < p.k; i += kTransposedWarps * 32 * V) {
      Vec<T, V> w[kLines];
#pragma unroll
      for (int l = 0; l < kLines; ++l) w[l] = load16<V>(matrix + (l < lines ? l : 0) * p.ld + i);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= count) break;
        const auto x = load16<V>(p.x + list.row[r] * p.x_ld + i);
#pragma unroll
        for (int l = 0; l < kLines; ++l)
#pragma unroll
          for (int e = 0; e < V; ++e) sum[l][r] += widen(x.x[e]) * widen(w[l].x[e]);
      }
    }
#pragma unroll
    for (int l = 0; l < kLines; ++l)
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const C all = warp_all<SumOp>(sum[l][r]);
        if (lane == 0) part[warp][l * kRows + r] = all;
      }
    __syncthreads();
    for (int i = int(threadIdx.x); i < kLines * kRows; i += kTransposedWarps * 32) {
      const int l = i / kRows, r = i % kRows;
      if (l >= lines || r >= count) continue;
      C total = part[0][i];
#pragma unroll
      for (int w = 1; w < kTransposedWarps; ++w) total += part[w][i];
      if (p.bias) total += widen(p.bias[first + l]);
      p.y[list.row[r] * p.n + first + l] = narrow<T>(total);
    }
  }
}

constexpr int kPlainWarps = 8;
constexpr int64_t kSegment = 256;  // terms of k per block
// part (segments, rows, n): partial sums per segment of k; y itself if one.
template <class T, int V, int kRows, class Which>
__global__ void __launch_bounds__(kPlainWarps * 32)
    few_rows_plain(SmallM<T> p, int64_t step, compute_t<T>* part, const __grid_constant__ Which which) {
  using C = compute_t<T>;
  __shared__ RowList<kRows> list;
  __shared__ int64_t next;
  __shared__ C xs[kSegment * kRows];
  __shared__ C own[kPlainWarps][32 * V];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t left = int64_t(blockIdx.x) * 32 * V, j = left + lane * V;
  const int64_t begin = int64_t(blockIdx.y) * kSegment, terms = min(kSegment, p.k - begin);
  const T* matrix = p.matrix + int64_t(blockIdx.z) * step + begin * p.ld + (j < p.n ? j : 0);
  for (int64_t from = 0; from < p.rows;) {
    from = next_rows<kRows>(which, int64_t(blockIdx.z), from, p.rows, list, next);
    const int count = list.count;
    if (count == 0) break;
    for (int i = int(threadIdx.x); i < int(terms) * kRows; i += kPlainWarps * 32) {
      const int r = i / int(terms), t = i % int(terms);
      xs[t * kRows + r] = r < count ? C(widen(p.x[list.row[r] * p.x_ld + begin + t])) : C(0);
    }
    __syncthreads();
    C sum[kRows][V] = {};
#pragma unroll(kRows > 4 ? 2 : 4)
    for (int t = warp; t < int(terms); t += kPlainWarps) {
      const auto w = load16<V>(matrix + t * p.ld);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int e = 0; e < V; ++e) sum[r][e] += xs[t * kRows + r] * widen(w.x[e]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= count) break;
      __syncthreads();
#pragma unroll
      for (int e = 0; e < V; ++e) own[warp][lane * V + e] = sum[r][e];
      __syncthreads();
      const int c = int(threadIdx.x);
      if (c >= 32 * V || left + c >= p.n) continue;
      C total = own[0][c];
#pragma unroll
      for (int w = 1; w < kPlainWarps; ++w) total += own[w][c];
      const int64_t at = list.row[r] * p.n + left + c;
      if (part)
        part[int64_t(blockIdx.y) * p.rows * p.n + at] = total;
      else
        p.y[at] = narrow<T>(p.bias ? total + widen(p.bias[left + c]) : total);
    }
  }
}
template <class T, class Which>
__global__ void small_m_finish(const compute_t<T>* part, int64_t segments, const T* bias, T* y, int64_t rows, int64_t n,
                               const __grid_constant__ Which which) {
  for (GridLoop i(rows * n); i; ++i) {
    if (!which.any(*i / n)) continue;
    compute_t<T> total = part[*i];
    for (int64_t s = 1; s < segments; ++s) total += part[s * rows * n + *i];
    if (bias) total += widen(bias[*i % n]);
    y[*i] = narrow<T>(total);
  }
}
// Rows without a matrix are logged and become zeros.
template <class T> __global__ void few_rows_check(NamedMatrices named, T* y, int64_t rows, int64_t n) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t id = named.index[r];
    if (named.check.inside(id)) continue;
    if (threadIdx.x == 0) named.check.note(id, r);
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) y[r * n + j] = narrow<T>(0);
  }
}

// of_matrices(first): row selector; a launch has at most 65535 matrices.
template <class T, int V, int kRows, class Of>
void run(const Context& c, SmallM<T> p, bool transposed, int64_t matrices, int64_t step, const Of& of_matrices) {
  using C = compute_t<T>;
  using Which = decltype(of_matrices(0));
  constexpr int64_t kMost = 65535;
  const auto many = [](int64_t a, int64_t b) { return unsigned((a + b - 1) / b); };
  const int64_t segments = std::max<int64_t>(1, (p.k + kSegment - 1) / kSegment);
  const bool in_parts = !transposed && segments > 1;
  const Scratch part(c, in_parts ? size_t(segments * p.rows * p.n) * sizeof(C) : 0);
  C* const parts = in_parts ? part.as<C>() : nullptr;
  for (int64_t first = 0; first < matrices; first += kMost, p.matrix += kMost * step) {
    const auto some = unsigned(std::min(kMost, matrices - first));
    if (transposed)
      launch(c, small_m_transposed<T, V, kRows, Which>, dim3(many(p.n, kLines), some), kTransposedWarps * 32, 0, p,
             step, of_matrices(first));
    else
      launch(c, few_rows_plain<T, V, kRows, Which>, dim3(many(p.n, 32 * V), unsigned(segments), some), kPlainWarps * 32,
             0, p, step, parts, of_matrices(first));
  }
  if (in_parts)
    launch(c, small_m_finish<T, Which>, blocks_for(c, p.rows * p.n, 256), 256, 0, static_cast<const C*>(parts),
           segments, p.bias, p.y, p.rows, p.n, of_matrices(0));
}
template <class T> void of_one(const Context& c, const SmallM<T>& p, bool transposed) {
  constexpr int V = kVec<T>;
  if (p.rows == 1) return run<T, V, 1>(c, p, transposed, 1, 0, [](int64_t) { return OneMatrix(); });
  if (p.rows <= 4) return run<T, V, 4>(c, p, transposed, 1, 0, [](int64_t) { return OneMatrix(); });
  run<T, V, int(kMaxSmallM)>(c, p, transposed, 1, 0, [](int64_t) { return OneMatrix(); });
}
template <class T> void of_named(const Context& c, const SmallM<T>& p, bool transposed, const NamedMatrices& named) {
  const auto which = [&](int64_t first) { return Named{named, first}; };
  if (in_vectors(p, transposed, named.step))
    run<T, kVec<T>, 4>(c, p, transposed, named.count, named.step, which);
  else
    run<T, 1, 4>(c, p, transposed, named.count, named.step, which);
  launch(c, few_rows_check<T>, unsigned(std::min<int64_t>(p.rows, 1024)), 128, 0, named, p.y, p.rows, p.n);
}
}  // namespace

void multiply_small_m(const Context& c, const SmallM<float>& p, bool transposed) { of_one(c, p, transposed); }
void multiply_small_m(const Context& c, const SmallM<bf16>& p, bool transposed) { of_one(c, p, transposed); }
void multiply_named(const Context& c, const SmallM<float>& p, bool transposed, const NamedMatrices& named) {
  of_named(c, p, transposed, named);
}
void multiply_named(const Context& c, const SmallM<bf16>& p, bool transposed, const NamedMatrices& named) {
  of_named(c, p, transposed, named);
}
void multiply_named(const Context& c, const SmallM<double>& p, bool transposed, const NamedMatrices& named) {
  of_named(c, p, transposed, named);
}
}  // namespace tg::cuda
