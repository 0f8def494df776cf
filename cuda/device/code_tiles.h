// Codes of 8 bits of a matrix tile by tile, for quantize.cu: one pass finds the magnitudes of columns, of rows and
// columns, or of all, by a maximum of their bits, which no order of threads changes; the other makes codes and turns
// them.
#pragma once
#include <tapegrad/cuda/device/byte_tiles.h>
#include <tapegrad/cuda/device/codes.h>

namespace tg::cuda {
namespace {
constexpr int kTileThreads = 256;

// As it lies in memory: elements of a row are neighbours.
template <class T> struct Matrix {
  const T* p;
  int64_t rows, cols, ld;
  bool vectors;                  // 16 bytes at a time
  int64_t row_place, col_place;  // element (i, j) is number i * row_place + j * col_place of x
  // V elements of row i from column j on; 0 where there are none.
  __device__ __forceinline__ Vec<T> at(int64_t i, int64_t j) const {
    Vec<T> v;
    if (vectors && i < rows && j < cols) return load16(p + i * ld + j);
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) v.x[e] = i < rows && j + e < cols ? p[i * ld + j + e] : narrow<T>(0);
    return v;
  }
};
constexpr int kTallest = 1024;  // rows of a block, where there are many
enum class Of { columns, both, all };
template <class T> constexpr int kStretch = 32 * kVec<T>;  // columns of a block, V for each lane of a warp

// The largest magnitudes into words that are 0 at first.
template <Of kOf, class T>
__global__ void __launch_bounds__(kTileThreads, 4)
    largest_in_tiles(Matrix<T> x, int64_t tall, uint32_t* of_rows, uint32_t* of_columns, Watch watch) {
  constexpr int V = kVec<T>, kWarps = kTileThreads / 32, kAtOnce = 2;
  __shared__ __align__(16) uint32_t part[kWarps * kStretch<T>];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t across = (x.cols + kStretch<T> - 1) / kStretch<T>, tiles = across * ((x.rows + tall - 1) / tall);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t begin = t / across * tall, left = t % across * kStretch<T>, j = left + lane * V;
    const int64_t end = min(begin + tall, x.rows);
    Vec<uint32_t, V> most = {};
    uint32_t own = 0;
    for (int64_t i = begin + warp * kAtOnce; i < end; i += kWarps * kAtOnce) {
      Vec<T> v[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) v[k] = x.at(i + k, j);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        uint32_t row = 0;
#pragma unroll
        for (int e = 0; e < V; ++e) {
          const uint32_t m = magnitude(v[k].x[e]);
          row = larger(row, m), most.x[e] = larger(most.x[e], m);
        }
        own = larger(own, row);
        if constexpr (kOf == Of::both) {
          row = warp_all<MaxOp>(row);
          if (lane == 0 && i + k < end) atomicMax(of_rows + i + k, as_f32<T>(row));
        }
      }
    }
    if constexpr (kOf == Of::all) {
      const uint32_t all = block_all<MaxOp, kTileThreads>(own, 0u);
      if (threadIdx.x == 0) atomicMax(of_columns, as_f32<T>(all));
    } else {
      __syncthreads();  // the last tile's parts were read
      store16_shared(part + warp * kStretch<T> + lane * V, most);
      __syncthreads();
      if (int(threadIdx.x) < kStretch<T> && left + threadIdx.x < x.cols) {
        uint32_t column = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) column = larger(column, part[w * kStretch<T> + threadIdx.x]);
        atomicMax(of_columns + left + threadIdx.x, as_f32<T>(column));
      }
    }
    if (watch.bad(as_f32<T>(own)))
#pragma unroll 1
      for (int64_t i = begin + warp * kAtOnce; i < end; i += kWarps * kAtOnce)
#pragma unroll 1
        for (int64_t k = 0; k < kAtOnce * V; ++k)
          if (i + k / V < end && j + k % V < x.cols)
            watch(x.p[(i + k / V) * x.ld + j + k % V], (i + k / V) * x.row_place + (j + k % V) * x.col_place);
  }
}

// Magnitudes of rows or columns: step 1, or 0 where all have the same.
struct Most {
  const uint32_t* p;
  int64_t step;
  __device__ __forceinline__ Coder operator()(int64_t i) const { return Coder(p[i * step]); }
};
// codes (rows, cols), if there are any, and turned (cols, rows). wide: as TurnedTile stores.
template <bool kBoth, class T>
__global__ void __launch_bounds__(kTileThreads)
    encode_tiles(Matrix<T> x, Most of_rows, Most of_columns, int8_t* codes, int8_t* turned, bool wide) {
  constexpr int V = kVec<T>;
  using Tile = TurnedTile<V>;
  static_assert(Tile::kThreads == kTileThreads);
  __shared__ __align__(16) Tile tile;
  const int64_t across = (x.cols + Tile::kWide - 1) / Tile::kWide,
                tiles = across * ((x.rows + Tile::kTall - 1) / Tile::kTall);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t first = t / across * Tile::kTall, left = t % across * Tile::kWide;
    const int64_t i = first + Tile::group() * 4, j = left + Tile::pack() * V;
    Vec<T> v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = x.at(i + k, j);
    if constexpr (kBoth)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (i + k >= x.rows || j >= x.cols) continue;
        const Coder code = of_rows(i + k);
        Vec<int8_t, V> q;
#pragma unroll
        for (int e = 0; e < V; ++e) q.x[e] = code(value(v[k].x[e]));
        int8_t* const to = codes + (i + k) * x.cols + j;
        if (x.cols % V == 0) {
          store16(to, q);
        } else {
#pragma unroll
          for (int e = 0; e < V; ++e)
            if (j + e < x.cols) to[e] = q.x[e];
        }
      }
    __syncthreads();  // the last tile was stored
#pragma unroll
    for (int e = 0; e < V; ++e) {
      if (j + e >= x.cols) continue;
      const Coder code = of_columns(j + e);
      Vec<int8_t, 4> q;
#pragma unroll
      for (int k = 0; k < 4; ++k) q.x[k] = code(value(v[k].x[e]));
      tile.put(e, q);
    }
    __syncthreads();
    tile.store(turned + left * x.rows + first, x.rows, x.cols - left, x.rows - first, wide);
  }
}
}  // namespace
}  // namespace tg::cuda
