#pragma once
#include <tapegrad/cuda/device/kernel.h>
#include <tapegrad/ops/quantized/codes.h>

namespace tg::cuda {
namespace {
struct Product {
  int64_t m = 0, n = 0;
  int64_t k = 0;  // a multiple of 16
  const int8_t *x = nullptr, *weight = nullptr;
  int64_t ld_x = 0, ld_weight = 0;
  const float *absmax_x = nullptr, *absmax_weight = nullptr, *bias = nullptr;
  int64_t step_x = 0, step_weight = 0;
  bool wide = false;  // 16-byte aligned result rows
};

// Tile order: columns within groups of kGroup rows, so that concurrent blocks share operands in L2.
struct TileOrigin {
  int64_t row, column;
  __device__ __forceinline__ TileOrigin(const Product& p, int64_t rows, int64_t columns, int64_t t) {
    constexpr int kGroup = 8;
    const int64_t across = (p.n + columns - 1) / columns, down = (p.m + rows - 1) / rows;
    const int64_t top = t / (across * kGroup) * kGroup, in_group = t - top * across;
    const int64_t height = min(down - top, int64_t(kGroup));
    row = (top + in_group % height) * rows, column = in_group / height * columns;
  }
};

// Epilogue through shared memory, 16 rows of kPart * 8 columns at a time.
template <class S, class T> struct Results {
  static constexpr int kPart = S::kN <= 8 ? S::kN : int(16 / sizeof(T)), kStep = kPart * 8 + 8;
  static constexpr size_t kColumnBytes = size_t(S::kColumns) * 8,
                          kBytes = kColumnBytes + size_t(S::kWarps) * 16 * kStep * sizeof(T);
  static_assert(S::kN % kPart == 0);

  // All multiplying threads call it, between barriers of `shared`.
  static __device__ __forceinline__ void store(const Product& p, const int (&sums)[S::kM][S::kN][4], T* y,
                                               std::byte* shared, int64_t first, int64_t left) {
    const int warp = int(threadIdx.x) / 32;
    float* const columns = reinterpret_cast<float*>(shared);
    T* const own = reinterpret_cast<T*>(shared + kColumnBytes) + warp * 16 * kStep;
    S::barrier();
    if constexpr (kScaled) {
      for (int j = int(threadIdx.x); j < S::kColumns; j += S::kThreads) {
        const int64_t column = left + j;
        columns[2 * j] = column < p.n ? p.absmax_weight[column * p.step_weight] : 0.0f;
        columns[2 * j + 1] = p.bias && column < p.n ? p.bias[column] : 0.0f;
      }
      S::barrier();
    }
    const int side = warp % S::kAcross * S::kN * 8;
    first += warp / S::kAcross * S::kM * 16;
#pragma unroll
    for (int i = 0; i < S::kM; ++i)
#pragma unroll
      for (int j = 0; j < S::kN; j += kPart) {
        scale(p, sums[i], j, own, columns + 2 * side, first + i * 16);
        __syncwarp();
        copy(p, own, y, first + i * 16, left + side + j * 8);
        __syncwarp();
      }
  }

 private:
  static constexpr bool kScaled = !std::is_same_v<T, int32_t>;
  static __device__ __forceinline__ void scale(const Product& p, const int (&sums)[S::kN][4], int begin, T* own,
                                               const float* columns, int64_t first) {
    const int lane = int(threadIdx.x) % 32;
    float absmax[2] = {};
    if constexpr (kScaled)
#pragma unroll
      for (int h = 0; h < 2; ++h) absmax[h] = p.absmax_x[min(first + lane / 4 + h * 8, p.m - 1) * p.step_x];
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      Vec<float, 4> of = {};
      if constexpr (kScaled) of = load16<4>(columns + 2 * (begin * 8 + column));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        Vec<T, 2> r;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int sum = sums[begin + j][2 * h + e];
          if constexpr (kScaled)
            r.x[e] = narrow<T>(scaled(sum, absmax[h], of.x[2 * e], of.x[2 * e + 1]));
          else
            r.x[e] = sum;
        }
        store16_shared(own + (lane / 4 + h * 8) * kStep + column, r);
      }
    }
  }
  static __device__ __forceinline__ void copy(const Product& p, const T* own, T* y, int64_t first, int64_t left) {
    constexpr int V = kVec<T>, kPacks = kPart * 8 / V, kAtOnce = 32 / kPacks;  // kAtOnce: rows per store
    const int row = int(threadIdx.x) % 32 / kPacks, pack = int(threadIdx.x) % kPacks;
    left += pack * V;
    if (left >= p.n) return;
    own += row * kStep + pack * V;
    T* to = y + (first + row) * p.n + left;
#pragma unroll
    for (int i = 0; i < 16; i += kAtOnce, to += kAtOnce * p.n) {
      if (first + row + i >= p.m) continue;
      if (p.wide)
        store16(to, load16(own + i * kStep));
      else
        for (int e = 0; e < V && left + e < p.n; ++e) to[e] = own[i * kStep + e];
    }
  }
};

}  // namespace
}  // namespace tg::cuda
