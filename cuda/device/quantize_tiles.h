// Rows in registers are read once. Columns, or both directions, take two passes over tiles: absmax by integer maximum,
// in any order; quantization and transposition through shared memory.
#pragma once
#include <tapegrad/cuda/device/quantize.h>
#include <tapegrad/cuda/device/rows.h>
#include <tapegrad/cuda/device/transpose_tile.h>

#include <optional>

namespace tg::cuda {
namespace {
constexpr int kTileThreads = 256;

template <class T> struct Matrix {
  const T* p;
  int64_t rows, cols, ld;
  bool vectors;                  // 16-byte accesses
  int64_t row_place, col_place;  // (i, j) is x[i * row_place + j * col_place]
  // V elements from (i, j) on; 0 beyond.
  __device__ __forceinline__ Vec<T> at(int64_t i, int64_t j) const {
    Vec<T> v;
    if (vectors && i < rows && j < cols) return load16(p + i * ld + j);
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) v.x[e] = i < rows && j + e < cols ? p[i * ld + j + e] : narrow<T>(0);
    return v;
  }
};
constexpr int kTallest = 1024;
enum class Of { columns, both, all };
template <class T> constexpr int kSegment = 32 * kVec<T>;  // columns per block

// Maximum magnitudes, in words that start at 0.
template <Of kOf, class T>
__global__ void __launch_bounds__(kTileThreads, 4)
    absmax_in_tiles(Matrix<T> x, int64_t tall, uint32_t* of_rows, uint32_t* of_columns, NonFiniteCheck watch) {
  constexpr int V = kVec<T>, kWarps = kTileThreads / 32, kAtOnce = 2;
  __shared__ __align__(16) uint32_t part[kWarps * kSegment<T>];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t across = (x.cols + kSegment<T> - 1) / kSegment<T>, tiles = across * ((x.rows + tall - 1) / tall);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t begin = t / across * tall, left = t % across * kSegment<T>, j = left + lane * V;
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
      __syncthreads();  // part is read
      store16_shared(part + warp * kSegment<T> + lane * V, most);
      __syncthreads();
      if (int(threadIdx.x) < kSegment<T> && left + threadIdx.x < x.cols) {
        uint32_t column = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) column = larger(column, part[w * kSegment<T> + threadIdx.x]);
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

// step: 0 for one absmax, else 1.
template <class Q> struct AbsmaxView {
  const uint32_t* p;
  int64_t step;
  __device__ __forceinline__ Q operator()(int64_t i) const { return Q(p[i * step]); }
};
// (rows, cols) if kBoth, and transposed. wide: see TransposeTile::store().
template <bool kBoth, class Q, class T>
__global__ void __launch_bounds__(kTileThreads)
    quantize_tiles(Matrix<T> x, AbsmaxView<Q> of_rows, AbsmaxView<Q> of_columns, typename Q::Value* codes,
                   typename Q::Value* transposed, bool wide) {
  constexpr int V = kVec<T>;
  using Tile = TransposeTile<V>;
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
        const Q quantized = of_rows(i + k);
        Vec<typename Q::Value, V> q;
#pragma unroll
        for (int e = 0; e < V; ++e) q.x[e] = quantized(value(v[k].x[e]));
        typename Q::Value* const to = codes + (i + k) * x.cols + j;
        if (x.cols % V == 0) {
          store16(to, q);
        } else {
#pragma unroll
          for (int e = 0; e < V; ++e)
            if (j + e < x.cols) to[e] = q.x[e];
        }
      }
    __syncthreads();  // the last tile is stored
#pragma unroll
    for (int e = 0; e < V; ++e) {
      if (j + e >= x.cols) continue;
      const Q quantized = of_columns(j + e);
      Vec<int8_t, 4> q;
#pragma unroll
      for (int k = 0; k < 4; ++k) q.x[k] = int8_t(quantized(value(v[k].x[e])));
      tile.put(e, q);
    }
    __syncthreads();
    tile.store(reinterpret_cast<int8_t*>(transposed) + left * x.rows + first, x.rows, x.cols - left, x.rows - first,
               wide);
  }
}
struct AsIs {
  template <class T> static __device__ __forceinline__ T f(T x) { return x; }
};
// Quantizes F(row) by its absmax.
template <class S, class F, class Q>
__global__ void __launch_bounds__(S::kBlock)
    quantize_rows(const typename S::T* x, int64_t step, typename Q::Value* codes, ScaleOutput scales, int64_t rows,
                  int64_t n, NonFiniteCheck watch) {
  using T = typename S::T;
  using Pack = Vec<T, S::V>;
  for (int64_t r = first_row<S>(); r < rows; r += row_step<S>()) {
    const T* p = x + r * step;
    Pack kept[S::kKept ? S::kPacks : 1];
    const auto read = [&](int k, int64_t j) {
      kept[k] = load16<S::V>(p + j);
#pragma unroll
      for (int e = 0; e < S::V; ++e) kept[k].x[e] = F::f(kept[k].x[e]);
    };
    const auto pack = [&](int k, int64_t j) -> const Pack& {
      if constexpr (!S::kKept) read(k, j);
      return kept[k];
    };
    if constexpr (S::kKept) each_pack<S>(n, read);
    uint32_t most = 0;
    each_pack<S>(n, [&](int k, int64_t j) {
      const Pack& v = pack(k, j);
#pragma unroll
      for (int e = 0; e < S::V; ++e) most = larger(most, magnitude(v.x[e]));
    });
    const uint32_t absmax = as_f32<T>(block_all<MaxOp, S::kThreads>(most, 0u));
    const Q quantized(absmax);
    each_pack<S>(n, [&](int k, int64_t j) {
      const Pack& v = pack(k, j);
      Vec<typename Q::Value, S::V> q;
#pragma unroll
      for (int e = 0; e < S::V; ++e) q.x[e] = quantized(value(v.x[e]));
      store16(codes + r * n + j, q);
    });
    if (threadIdx.x % S::kThreads == 0) scales.set(r, absmax);
    if (watch.bad(absmax))
#pragma unroll 1
      for (int64_t j = threadIdx.x % S::kThreads; j < n; j += S::kThreads) watch(p[j], r * n + j);
  }
}
// Packs stay unconverted, so that rows of 16-bit floats may be twice as long.
template <class T, class F> void visit_shape(int64_t n, bool vectors, F&& f) {
  constexpr int V = kVec<T>;
  if (vectors) {
    if (n <= 512) return f.template operator()<RowShape<T, 32, V, 16 / V>>();
    if (n <= 2048) return f.template operator()<RowShape<T, 32, V, 64 / V>>();
    if (n <= 8192) return f.template operator()<RowShape<T, 256, V, 32 / V>>();
    if (n <= 32768) return f.template operator()<RowShape<T, 1024, V, 32 / V>>();
    return f.template operator()<RowShape<T, 512, V, 0>>();
  }
  if (n <= 256) return f.template operator()<RowShape<T, 32, 1, 8>>();
  if (n <= 2048) return f.template operator()<RowShape<T, 256, 1, 8>>();
  return f.template operator()<RowShape<T, 512, 1, 0>>();
}

// --- host
__global__ void __launch_bounds__(kTileThreads) narrow_scales(const uint32_t* most, f16* scales, int64_t n) {
  for (GridLoop g(n); g; ++g) scales[*g] = f16(math::detail::float_of(most[*g]));
}

void clear(const Context& c, void* p, int64_t bytes) {
  if (bytes > 0) check(cudaMemsetAsync(p, 0, size_t(bytes), stream_of(c.device.index)), c.op, "clearing");
}
class AbsmaxWords {
 public:
  AbsmaxWords(const Context& c, const Buf& scales) : c_(c), scales_(scales), n_(scales.numel()) {
    if (scales.dtype() == DType::f16 && n_ > 0) scratch_.emplace(c, size_t(n_) * 4);
    words_ = scratch_ ? scratch_->as<uint32_t>() : reinterpret_cast<uint32_t*>(first_element(scales));
    clear(c, words_, n_ * 4);
  }
  uint32_t* words() const { return words_; }
  void finish() const {
    if (!scratch_) return;
    launch(c_, narrow_scales, blocks_for(c_, n_, kTileThreads), kTileThreads, 0, words_, scales_.data<f16>(), n_);
  }

 private:
  const Context& c_;
  const Buf& scales_;
  int64_t n_;
  std::optional<Scratch> scratch_;
  uint32_t* words_;
};

bool has_contiguous_columns(const Buf& x) {
  return x.shape().size() == 2 && x.strides()[0] == 1 && x.strides()[1] >= x.size(0) && x.strides()[1] > 1;
}
template <class T> Matrix<T> matrix(const T* p, int64_t rows, int64_t cols, int64_t ld) {
  return {p, rows, cols, ld, aligned16(p) && ld % kVec<T> == 0 && cols % kVec<T> == 0, cols, 1};
}
// Matrix in memory of an x with contiguous columns.
template <class T> Matrix<T> transposed_matrix(const Buf& x) {
  Matrix<T> m = matrix(static_cast<const T*>(x.data<T>()), x.size(1), x.size(0), x.strides()[1]);
  m.row_place = 1, m.col_place = x.size(1);
  return m;
}
template <Of kOf, class T>
void find_absmax(const Context& c, const Matrix<T>& x, uint32_t* rows, uint32_t* columns, const NonFiniteCheck& watch) {
  const int64_t across = (x.cols + kSegment<T> - 1) / kSegment<T>;
  int64_t tall = 128;
  while (tall < kTallest && across * ((x.rows + tall - 1) / tall) > blocks_for(c, int64_t(1) << 40, 1)) tall *= 2;
  launch(c, absmax_in_tiles<kOf, T>, blocks_for(c, across * ((x.rows + tall - 1) / tall), 1), kTileThreads, 0, x, tall,
         rows, columns, watch);
}
template <bool kBoth, class Q, class T>
void quantize_tiled(const Context& c, const Matrix<T>& x, AbsmaxView<Q> rows, AbsmaxView<Q> columns,
                    typename Q::Value* codes, typename Q::Value* transposed) {
  using Tile = TransposeTile<kVec<T>>;
  const int64_t tiles = (x.cols + Tile::kWide - 1) / Tile::kWide * ((x.rows + Tile::kTall - 1) / Tile::kTall);
  launch(c, quantize_tiles<kBoth, Q, T>, blocks_for(c, tiles, 1), kTileThreads, 0, x, rows, columns, codes, transposed,
         x.rows % 16 == 0 && aligned16(transposed));
}

template <class Q, class F, class T>
void quantize_each_row(const Context& c, const Buf& x, Bufs out, const NonFiniteCheck& watch) {
  const int64_t rows = out[1].numel(), n = x.shape().back();
  auto* const codes = out[0].data<typename Q::Value>();
  const Strided<1> walk(Shape(x.shape().begin(), x.shape().end() - 1),
                        {Strides(x.strides().begin(), x.strides().end() - 1)});
  const bool in_place = walk.dims <= 1 && (x.strides().back() == 1 || n == 1);
  std::optional<Dense<T>> copy;
  if (!in_place) copy.emplace(c, x);
  const T* const p = in_place ? x.data<T>() : static_cast<const T*>(*copy);
  const int64_t step = in_place && walk.dims == 1 ? walk.stride[0][0] : n;
  visit_shape<T>(n, rows_in_vectors<T>(n, p, codes) && step % kVec<T> == 0, [&]<class S>() {
    launch_per_row<S>(c, rows, quantize_rows<S, F, Q>, p, step, codes, ScaleOutput(out[1]), rows, n, watch);
  });
}
// out[0]: values; out[1]: absmax per row.
template <class Q, class T>
void quantize_rows_of(const Context& c, const Buf& x, Bufs out, const NonFiniteCheck& watch) {
  if (!has_contiguous_columns(x)) return quantize_each_row<Q, AsIs, T>(c, x, out, watch);
  const Matrix<T> m = transposed_matrix<T>(x);
  const AbsmaxWords absmax(c, out[1]);
  find_absmax<Of::columns>(c, m, nullptr, absmax.words(), watch);
  quantize_tiled<false, Q>(c, m, {}, {absmax.words(), 1}, nullptr, out[0].data<typename Q::Value>());
  absmax.finish();
}
}  // namespace
}  // namespace tg::cuda
