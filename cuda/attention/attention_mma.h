// mma.sync m16n8k16 on bf16 tiles in shared memory. A warp has kTall * 16 rows. Lane l of a 16 x 8 accumulator has
// columns l % 4 * 2 and the next of rows l / 4 (e = 0, 1) and l / 4 + 8 (e = 2, 3). Two adjacent ones, rounded to bf16,
// are the next GEMM's A operand.
#pragma once
#include <tapegrad/cuda/attention/attention_kernels.h>

namespace tg::cuda {
namespace {
constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr size_t kSharedOfSm = 228 << 10, kSharedOfBlock = 1 << 10;  // sm_90; system's share
// Row stride of a tile: an odd multiple of 16 bytes against bank conflicts.
template <int D> constexpr int kStep = D + 8;

__device__ __forceinline__ int lane_row() { return int(threadIdx.x) % 32 / 4; }
__device__ __forceinline__ int lane_column() { return int(threadIdx.x) % 4 * 2; }

__device__ __forceinline__ uint32_t pack(float low, float high) {
#ifdef __CUDA_ARCH__
  const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
  return uint32_t(__bfloat16_as_ushort(x.x)) | uint32_t(__bfloat16_as_ushort(x.y)) << 16;
#else
  return uint32_t(narrow<bf16>(low).bits) | uint32_t(narrow<bf16>(high).bits) << 16;
#endif
}

// cp.async of rows [first, first + kRows), zeros beyond `rows` and hs.
template <int kRows, int D>
__device__ __forceinline__ void load_tile(bf16* to, const HeadRows<const bf16>& from, int64_t first, int64_t rows,
                                          int64_t hs) {
  constexpr int kParts = D / kVec<bf16>, kAtOnce = kThreads / kParts;
  const int row = int(threadIdx.x) / kParts, column = int(threadIdx.x) % kParts * kVec<bf16>;
  if (kThreads % kParts != 0 && row == kAtOnce) return;
  const int left = column < hs ? int(min(rows - first, int64_t(kRows))) - row : 0;
  const bf16* p = from.p + (first + row) * from.row + column;
  to += row * kStep<D> + column;
#pragma unroll
  for (int r = 0; r < kRows; r += kAtOnce, p += kAtOnce * from.row)
    if (r + kAtOnce <= kRows || r + row < kRows) cp_async16(to + r * kStep<D>, p, r < left);
}
template <int kTall, int N> __device__ __forceinline__ void clear(float (&o)[kTall][N][4]) {
#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[m][n][e] = 0;
}
// s = a b^T: the warp's rows of a, N * 8 rows of b.
template <int D, int kTall, int N>
__device__ __forceinline__ void multiply_rows(float (&s)[kTall][N][4], const bf16* a, const bf16* b) {
  const int lane = int(threadIdx.x) % 32;
  a += lane % 16 * kStep<D> + lane / 16 * 8;
  b += (lane / 16 * 8 + lane % 8) * kStep<D> + lane / 8 % 2 * 8;
  clear(s);
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t x[kTall][4];
#pragma unroll
    for (int m = 0; m < kTall; ++m) ldmatrix_x4(x[m], a + m * 16 * kStep<D> + d);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t y[4];
      ldmatrix_x4(y, b + n * 8 * kStep<D> + d);
#pragma unroll
      for (int m = 0; m < kTall; ++m) {
        mma_bf16(s[m][n], x[m], y[0], y[1]);
        mma_bf16(s[m][n + 1], x[m], y[2], y[3]);
      }
    }
  }
}
// o += s b: s (16 kTall, 8 N); b (8 N, D).
template <int D, int kTall, int N>
__device__ __forceinline__ void add_weighted(float (&o)[kTall][D / 8][4], const float (&s)[kTall][N][4],
                                             const bf16* b) {
  const int lane = int(threadIdx.x) % 32;
  b += lane % 16 * kStep<D> + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < N; k += 2) {
    uint32_t x[kTall][4];
#pragma unroll
    for (int m = 0; m < kTall; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[m][e] = pack(s[m][k + e / 2][e % 2 * 2], s[m][k + e / 2][e % 2 * 2 + 1]);
#pragma unroll
    for (int d = 0; d < D / 8; d += 2) {
      uint32_t y[4];
      ldmatrix_x4_trans(y, b + k * 8 * kStep<D> + d * 8);
#pragma unroll
      for (int m = 0; m < kTall; ++m) {
        mma_bf16(o[m][d], x[m], y[0], y[1]);
        mma_bf16(o[m][d + 1], x[m], y[2], y[3]);
      }
    }
  }
}
// Hides scores: rows are queries from row0 on, columns keys from k0 on.
template <int kTall, int N>
__device__ __forceinline__ void mask_rows(float (&s)[kTall][N][4], float value, const AttentionSizes& z,
                                          const AttentionSpan& span, int64_t row0, int64_t k0) {
#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t last = z.seen(span, row0 + m * 16 + i * 8 + lane_row()) - k0;
      const int seen = int(min(last, int64_t(N * 8))) - lane_column();
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (n * 8 + e >= seen) s[m][n][2 * i + e] = value;
    }
}
// s *= mask: rows are queries from i on, columns keys from k0 on. Two lanes draw two rows' blocks.
template <int kTall, int N, bool kDrops>
__device__ __forceinline__ void drop_rows(float (&s)[kTall][N][4], const HeadMask<kDrops, float>& mask, int64_t i,
                                          int64_t k0) {
  if constexpr (!kDrops) return;
  const bool odd = threadIdx.x & 1;
#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const Words w = mask.words(i + m * 16 + lane_row() + (odd ? 8 : 0), k0 / 4 + n * 2 + lane_column() / 4);
      const uint32_t a = __shfl_xor_sync(~0u, odd ? w.x : w.z, 1), b = __shfl_xor_sync(~0u, odd ? w.y : w.w, 1);
      s[m][n][0] *= mask(odd ? a : w.x), s[m][n][1] *= mask(odd ? b : w.y);
      s[m][n][2] *= mask(odd ? w.z : a), s[m][n][3] *= mask(odd ? w.w : b);
    }
}
// Stores o * factor as rows [first, ...). `own`: the warp's staging memory.
template <int D, int kTall>
__device__ __forceinline__ void store_rows(const HeadRows<bf16>& to, const float (&o)[kTall][D / 8][4],
                                           const float (&factor)[kTall][2], bf16* own, int64_t first, int64_t rows,
                                           int64_t hs) {
  constexpr int V = 8, kParts = D / V;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<uint32_t*>(own + (m * 16 + lane_row() + i * 8) * kStep<D> + n * 8 + lane_column()) =
            pack(o[m][n][2 * i] * factor[m][i], o[m][n][2 * i + 1] * factor[m][i]);
  __syncwarp();
  for (int i = int(threadIdx.x) % 32; i < kTall * 16 * kParts; i += 32) {
    const int r = i / kParts, d = i % kParts * V;
    if (first + r >= rows || d >= hs) continue;
    const auto x = load16(own + r * kStep<D> + d);
    bf16* p = to.p + (first + r) * to.row + d * to.col;
    if (to.vectors) {
      store16(p, x);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (d + v < hs) p[v * to.col] = x.x[v];
    }
  }
}

}  // namespace
}  // namespace tg::cuda
