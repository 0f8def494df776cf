// Kernels of ops/quantized/quantize.h but the product (int8_linear.cu). Rows that fit in registers are read once. A
// matrix whose columns lie together, and both ways at once, take two passes: one finds magnitudes, by a maximum of
// their bits, which no order of threads changes; the other makes codes, tile by tile, and turns them in shared memory.
#include <tapegrad/cuda/device/index_check.h>
#include <tapegrad/cuda/device/rows.h>
#include <tapegrad/ops/quantized/codes.h>
#include <tapegrad/ops/quantized/quantize.h>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

// Magnitudes as unsigned integers in their order, which for 16-bit floats need no conversion, and as bits of an f32.
__device__ __forceinline__ uint32_t magnitude(float x) { return magnitude_bits(x); }
template <class T> __device__ __forceinline__ uint32_t magnitude(T x) { return x.bits & 0x7fffu; }
template <class T> __device__ __forceinline__ uint32_t as_f32(uint32_t m) {
  if constexpr (std::is_same_v<T, float>) return m;
  if constexpr (std::is_same_v<T, bf16>) return m << 16;
  f16 x;
  x.bits = uint16_t(m);
  return math::detail::bits_of(to_float(x));
}
template <class T> __device__ __forceinline__ float value(T x) {
  if constexpr (std::is_same_v<T, f16>)
    return to_float(x);
  else
    return widen(x);
}
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// x / y, rounded to nearest as the division is, where r = 1 / y and no operation leaves the normal range. True of all
// quotients that Coder and Decoder need: each was tried.
__device__ __forceinline__ float quotient(float x, float y, float r) {
  const float q = x * r;
  return math::detail::fma(math::detail::fma(-q, y, x), r, q);
}
// code_of() by one absmax, without a division for each element: it would take longer than the memory.
class Coder {
 public:
  // Magnitudes far from 1 are scaled, exactly: what that cuts off has code 0.
  __device__ __forceinline__ explicit Coder(uint32_t absmax) {
    const float a = math::detail::float_of(absmax);
    scale_ = a < 0x1p-60f ? 0x1p80f : a > 0x1p60f ? 0x1p-80f : 1.0f;
    absmax_ = a > 0 ? a * scale_ : 1.0f;
    inverse_ = 1.0f / absmax_;
  }
  __device__ __forceinline__ int8_t operator()(float x) const {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: a sum with it is rounded to an integer, ties to even
    const float q = quotient(x * scale_, absmax_, inverse_);
#ifdef __CUDA_ARCH__
    const float product = __fmul_rn(127.0f, q);  // never one operation with the sum
#else
    const float product = 127.0f * q;
#endif
    return int8_t(math::detail::bits_of(product + kMagic));
  }

 private:
  float scale_, absmax_, inverse_;
};
// value_of() by one absmax, likewise.
class Decoder {
 public:
  __device__ __forceinline__ explicit Decoder(float absmax)
      : absmax_(absmax), usual_(math::abs(absmax) > 0x1p-80f && math::abs(absmax) < 0x1p100f) {}
  __device__ __forceinline__ float operator()(int8_t code) const {
    return usual_ ? quotient(absmax_ * float(code), 127.0f, 1.0f / 127.0f) : value_of(code, absmax_);
  }

 private:
  float absmax_;
  bool usual_;
};

// Elements that are not finite come before those that are too large for a state in f16: those stand kTooLarge further.
constexpr int64_t kTooLarge = int64_t(1) << 39;
Error not_quantised(const IndexSite& s, int64_t position, int64_t value) {
  return tg::detail::not_quantised(s.op, s.index, position % kTooLarge, math::detail::float_of(uint32_t(value)));
}
// What is found in x that has no code. Only who saw it looks for where it is.
class Watch {
 public:
  Watch(const Context& c, const Buf& x, DType state)
      : check_(c, {not_quantised, c.op, *x.layout}), least_(state == DType::f16 ? 0x477ff000u : kNotFinite) {}
  __device__ __forceinline__ bool bad(uint32_t absmax) const { return absmax >= least_; }
  template <class T> __device__ __forceinline__ void operator()(T x, int64_t position) const {
    const uint32_t m = as_f32<T>(magnitude(x));
    if (!bad(m)) return;
    check_.note(int64_t(math::detail::bits_of(value(x))), m >= kNotFinite ? position : position + kTooLarge);
  }

 private:
  IndexCheck check_;
  uint32_t least_;  // 0x477ff000 is 65520, which f16 rounds to infinity
};
struct State {
  void* p;
  bool narrow;
  State(const Buf& b) : p(first_element(b)), narrow(b.dtype() == DType::f16) {}
  __device__ __forceinline__ void set(int64_t i, uint32_t absmax) const {
    if (narrow)
      static_cast<f16*>(p)[i] = f16(math::detail::float_of(absmax));
    else
      static_cast<uint32_t*>(p)[i] = absmax;
  }
};

// --- rows ---------------------------------------------------------------------------------------------------------
template <class S>
__global__ void __launch_bounds__(S::kBlock) quantize_rows(const typename S::T* x, int64_t step, int8_t* codes,
                                                           State state, int64_t rows, int64_t n, Watch watch) {
  using T = typename S::T;
  using Pack = Vec<T, S::V>;
  for (int64_t r = first_row<S>(); r < rows; r += row_step<S>()) {
    const T* p = x + r * step;
    Pack kept[S::kKept ? S::kPacks : 1];
    const auto read = [&](int k, int64_t j) { kept[k] = *reinterpret_cast<const Pack*>(p + j); };
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
    if (watch.bad(absmax))
      for (int64_t j = threadIdx.x % S::kThreads; j < n; j += S::kThreads) watch(p[j], r * n + j);
    const Coder code(absmax);
    each_pack<S>(n, [&](int k, int64_t j) {
      const Pack& v = pack(k, j);
      Vec<int8_t, S::V> q;
#pragma unroll
      for (int e = 0; e < S::V; ++e) q.x[e] = code(value(v.x[e]));
      *reinterpret_cast<Vec<int8_t, S::V>*>(codes + r * n + j) = q;
    });
    if (threadIdx.x % S::kThreads == 0) state.set(r, absmax);
  }
}
// f with the RowShape: packs are kept as they were read, so 16-bit floats have room for twice as many.
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
  if (n <= 4096) return f.template operator()<RowShape<T, 256, 1, 16>>();
  return f.template operator()<RowShape<T, 512, 1, 0>>();
}

// --- columns, tiles -----------------------------------------------------------------------------------------------
// As it lies in memory: elements of a row are neighbours.
template <class T> struct Matrix {
  const T* p;
  int64_t rows, cols, ld;
  bool vectors;                  // 16 bytes at a time
  int64_t row_place, col_place;  // element (i, j) is number i * row_place + j * col_place of x
  // V elements of row i from column j on; 0 where there are none.
  __device__ __forceinline__ Vec<T> at(int64_t i, int64_t j) const {
    Vec<T> v;
    if (vectors && i < rows && j < cols) return *reinterpret_cast<const Vec<T>*>(p + i * ld + j);
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
__global__ void __launch_bounds__(kThreads)
    largest_in_tiles(Matrix<T> x, int64_t tall, uint32_t* of_rows, uint32_t* of_columns, Watch watch) {
  constexpr int V = kVec<T>, kWarps = kThreads / 32, kAtOnce = 4;
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
    if (watch.bad(as_f32<T>(own)))
      for (int64_t i = begin + warp * kAtOnce; i < end; i += kWarps * kAtOnce)
        for (int64_t k = 0; k < kAtOnce * V; ++k)
          if (i + k / V < end && j + k % V < x.cols)
            watch(x.p[(i + k / V) * x.ld + j + k % V], (i + k / V) * x.row_place + (j + k % V) * x.col_place);
    if constexpr (kOf == Of::all) {
      own = block_all<MaxOp, kThreads>(own, 0u);
      if (threadIdx.x == 0) atomicMax(of_columns, as_f32<T>(own));
      continue;
    }
    __syncthreads();  // the last tile's parts were read
#pragma unroll
    for (int e = 0; e < V; e += 4)
      *reinterpret_cast<Vec<uint32_t, 4>*>(part + warp * kStretch<T> + lane * V + e) =
          *reinterpret_cast<const Vec<uint32_t, 4>*>(most.x + e);
    __syncthreads();
    if (int(threadIdx.x) >= kStretch<T> || left + threadIdx.x >= x.cols) continue;
    uint32_t column = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) column = larger(column, part[w * kStretch<T> + threadIdx.x]);
    atomicMax(of_columns + left + threadIdx.x, as_f32<T>(column));
  }
}

// Magnitudes of rows or columns: step 1, or 0 where all have the same.
struct Most {
  const uint32_t* p;
  int64_t step;
  __device__ __forceinline__ Coder operator()(int64_t i) const { return Coder(p[i * step]); }
};
// A tile is 128 rows by 8 packs; a thread has the packs of 4 rows, a word of codes of each of its columns. A column's
// words are put in groups of 16 bytes, whose order differs from pack to pack, so that no two lanes meet in a bank.
constexpr int kTall = 128, kPacks = 8;
template <class T> constexpr int kWide = kPacks * kVec<T>;

// codes (rows, cols), if there are any, and turned (cols, rows).
template <bool kBoth, class T>
__global__ void __launch_bounds__(kThreads)
    encode_tiles(Matrix<T> x, Most of_rows, Most of_columns, int8_t* codes, int8_t* turned, bool wide_stores) {
  constexpr int V = kVec<T>, kColumn = kTall / 4;
  __shared__ __align__(16) uint32_t tile[kWide<T> * kColumn];
  const int pack = int(threadIdx.x) % kPacks, group = int(threadIdx.x) / kPacks;
  const int64_t across = (x.cols + kWide<T> - 1) / kWide<T>, tiles = across * ((x.rows + kTall - 1) / kTall);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t first = t / across * kTall, left = t % across * kWide<T>;
    const int64_t i = first + group * 4, j = left + pack * V;
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
          *reinterpret_cast<Vec<int8_t, V>*>(to) = q;
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
      *reinterpret_cast<Vec<int8_t, 4>*>(tile + (pack * V + e) * kColumn + ((group / 4 ^ pack) * 4 + group % 4)) = q;
    }
    __syncthreads();
    if (wide_stores) {
      for (int k = int(threadIdx.x); k < kWide<T> * (kTall / 16); k += kThreads) {
        const int c = k / (kTall / 16), part = k % (kTall / 16);
        if (left + c >= x.cols || first + part * 16 >= x.rows) continue;
        *reinterpret_cast<Vec<uint32_t>*>(turned + (left + c) * x.rows + first + part * 16) =
            *reinterpret_cast<const Vec<uint32_t>*>(tile + c * kColumn + (part ^ c / V) * 4);
      }
      continue;
    }
    for (int k = int(threadIdx.x); k < kWide<T> * kTall; k += kThreads) {
      const int c = k / kTall, r = k % kTall;
      if (left + c >= x.cols || first + r >= x.rows) continue;
      turned[(left + c) * x.rows + first + r] =
          reinterpret_cast<const int8_t*>(tile + c * kColumn + (r / 16 ^ c / V) * 4)[r % 16];
    }
  }
}

// --- all of x, as it lies in memory -------------------------------------------------------------------------------
template <class T>
__global__ void __launch_bounds__(kThreads)
    largest_of_all(const T* x, int64_t n, int64_t packs, uint32_t* most, Watch watch) {
  constexpr int V = kVec<T>;
  uint32_t own = 0;
#pragma unroll 4
  for (GridLoop g(packs); g; ++g) {
    const auto v = reinterpret_cast<const Vec<T>*>(x)[*g];
#pragma unroll
    for (int e = 0; e < V; ++e) own = larger(own, magnitude(v.x[e]));
  }
  for (GridLoop g(n - packs * V); g; ++g) own = larger(own, magnitude(x[packs * V + *g]));
  if (watch.bad(as_f32<T>(own))) {
    for (GridLoop g(packs); g; ++g)
      for (int e = 0; e < V; ++e) watch(x[*g * V + e], *g * V + e);
    for (GridLoop g(n - packs * V); g; ++g) watch(x[packs * V + *g], packs * V + *g);
  }
  own = block_all<MaxOp, kThreads>(own, 0u);
  if (threadIdx.x == 0) atomicMax(most, as_f32<T>(own));
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    encode_all(const T* x, int64_t n, int64_t packs, const uint32_t* most, int8_t* codes) {
  constexpr int V = kVec<T>;
  const Coder code(*most);
#pragma unroll 2
  for (GridLoop g(packs); g; ++g) {
    const auto v = reinterpret_cast<const Vec<T>*>(x)[*g];
    Vec<int8_t, V> q;
#pragma unroll
    for (int e = 0; e < V; ++e) q.x[e] = code(value(v.x[e]));
    reinterpret_cast<Vec<int8_t, V>*>(codes)[*g] = q;
  }
  for (GridLoop g(n - packs * V); g; ++g) codes[packs * V + *g] = code(value(x[packs * V + *g]));
}
__global__ void __launch_bounds__(kThreads) narrow_states(const uint32_t* most, f16* state, int64_t n) {
  for (GridLoop g(n); g; ++g) state[*g] = f16(math::detail::float_of(most[*g]));
}

// --- the host's side ----------------------------------------------------------------------------------------------
template <class F> void visit_input(DType d, F&& f) {
  if (d == DType::f32)
    f.template operator()<float>();
  else if (d == DType::bf16)
    f.template operator()<bf16>();
  else
    f.template operator()<f16>();
}
void clear(const Context& c, void* p, int64_t bytes) {
  if (bytes > 0) check(cudaMemsetAsync(p, 0, size_t(bytes), stream_of(c.device.index)), c.op, "clearing");
}
// Words for the magnitudes of a state: its own where it is f32, else scratch that finish() rounds.
class Magnitudes {
 public:
  Magnitudes(const Context& c, const Buf& state) : c_(c), state_(state), n_(state.numel()) {
    if (state.dtype() == DType::f16 && n_ > 0) scratch_.emplace(c, size_t(n_) * 4);
    words_ = scratch_ ? scratch_->as<uint32_t>() : reinterpret_cast<uint32_t*>(first_element(state));
    clear(c, words_, n_ * 4);
  }
  uint32_t* words() const { return words_; }
  void finish() const {
    if (!scratch_) return;
    launch(c_, narrow_states, blocks_for(c_, n_, kThreads), kThreads, 0, words_, state_.data<f16>(), n_);
  }

 private:
  const Context& c_;
  const Buf& state_;
  int64_t n_;
  std::optional<Scratch> scratch_;
  uint32_t* words_;
};

bool lies_in_columns(const Buf& x) {
  return x.shape().size() == 2 && x.strides()[0] == 1 && x.strides()[1] >= x.size(0) && x.strides()[1] > 1;
}
template <class T> Matrix<T> matrix(const T* p, int64_t rows, int64_t cols, int64_t ld) {
  return {p, rows, cols, ld, aligned16(p) && ld % kVec<T> == 0 && cols % kVec<T> == 0, cols, 1};
}
// x, which lies in columns, as the matrix in memory.
template <class T> Matrix<T> turned_matrix(const Buf& x) {
  Matrix<T> m = matrix(static_cast<const T*>(x.data<T>()), x.size(1), x.size(0), x.strides()[1]);
  m.row_place = 1, m.col_place = x.size(1);
  return m;
}
template <Of kOf, class T>
void find_largest(const Context& c, const Matrix<T>& x, uint32_t* rows, uint32_t* columns, const Watch& watch) {
  const int64_t across = (x.cols + kStretch<T> - 1) / kStretch<T>;
  int64_t tall = kTall;
  while (tall < kTallest && across * ((x.rows + tall - 1) / tall) > blocks_for(c, int64_t(1) << 40, 1)) tall *= 2;
  launch(c, largest_in_tiles<kOf, T>, blocks_for(c, across * ((x.rows + tall - 1) / tall), 1), kThreads, 0, x, tall,
         rows, columns, watch);
}
template <bool kBoth, class T>
void encode(const Context& c, const Matrix<T>& x, Most rows, Most columns, int8_t* codes, int8_t* turned) {
  const int64_t tiles = ((x.cols + kWide<T> - 1) / kWide<T>)*((x.rows + kTall - 1) / kTall);
  launch(c, encode_tiles<kBoth, T>, blocks_for(c, tiles, 1), kThreads, 0, x, rows, columns, codes, turned,
         x.rows % 16 == 0 && aligned16(turned));
}

void quantize_rowwise(const op::QuantizeRowwise& op, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &state = out[1];
  const int64_t rows = state.numel(), n = x.shape().back();
  int8_t* const codes = out[0].data<int8_t>();
  if (x.numel() == 0) return clear(c, first_element(state), int64_t(state.layout->bytes()));
  const Watch watch(c, x, op.state);
  visit_input(x.dtype(), [&]<class T>() {
    if (lies_in_columns(x)) {
      const Matrix<T> m = turned_matrix<T>(x);
      const Magnitudes most(c, state);
      find_largest<Of::columns>(c, m, nullptr, most.words(), watch);
      encode<false>(c, m, {}, {most.words(), 1}, nullptr, codes);
      return most.finish();
    }
    const Strided<1> walk(Shape(x.shape().begin(), x.shape().end() - 1),
                          {Strides(x.strides().begin(), x.strides().end() - 1)});
    const bool in_place = walk.dims <= 1 && (x.strides().back() == 1 || n == 1);
    std::optional<Dense<T>> copy;
    if (!in_place) copy.emplace(c, x);
    const T* const p = in_place ? x.data<T>() : static_cast<const T*>(*copy);
    const int64_t step = in_place && walk.dims == 1 ? walk.stride[0][0] : n;
    visit_shape<T>(n, rows_in_vectors<T>(n, p, codes) && step % kVec<T> == 0, [&]<class S>() {
      launch_per_row<S>(c, rows, quantize_rows<S>, p, step, codes, State(state), rows, n, watch);
    });
  });
}
void quantize_global(const op::QuantizeGlobal& op, Bufs in, Bufs out, Context& c) {
  const Buf& x = in[0];
  const int64_t n = x.numel();
  int8_t* const codes = out[0].data<int8_t>();
  if (n == 0) return clear(c, first_element(out[1]), int64_t(out[1].layout->bytes()));
  const Watch watch(c, x, op.state);
  const Magnitudes most(c, out[1]);
  visit_input(x.dtype(), [&]<class T>() {
    if (lies_in_columns(x)) {
      const Matrix<T> m = turned_matrix<T>(x);
      find_largest<Of::all>(c, m, nullptr, most.words(), watch);
      return encode<false>(c, m, {}, {most.words(), 0}, nullptr, codes);
    }
    const Dense<T> dense(c, x);
    const T* const p = dense;
    const int64_t packs = aligned16(p) && aligned16(codes) ? n / kVec<T> : 0;
    const unsigned blocks = blocks_for(c, packs ? packs : n, kThreads);
    launch(c, largest_of_all<T>, blocks, kThreads, 0, p, n, packs, most.words(), watch);
    launch(c, encode_all<T>, blocks, kThreads, 0, p, n, packs, most.words(), codes);
  });
  most.finish();
}
void quantize_both_ways(const op::QuantizeBothWays& op, Bufs in, Bufs out, Context& c) {
  const Buf& x = in[0];
  if (x.numel() == 0) {
    for (const size_t k : {1, 3}) clear(c, first_element(out[k]), int64_t(out[k].layout->bytes()));
    return;
  }
  const Watch watch(c, x, op.state);
  const Magnitudes rows(c, out[1]), columns(c, out[3]);
  int8_t *codes = out[0].data<int8_t>(), *turned = out[2].data<int8_t>();
  visit_input(x.dtype(), [&]<class T>() {
    const auto run = [&](const Matrix<T>& m, const Magnitudes& of_rows, const Magnitudes& of_columns, int8_t* q,
                         int8_t* q_turned) {
      find_largest<Of::both>(c, m, of_rows.words(), of_columns.words(), watch);
      encode<true>(c, m, {of_rows.words(), 1}, {of_columns.words(), 1}, q, q_turned);
    };
    if (lies_in_columns(x)) return run(turned_matrix<T>(x), columns, rows, turned, codes);
    const bool in_place = x.strides()[1] == 1 && x.strides()[0] >= x.size(1);
    std::optional<Dense<T>> copy;
    if (!in_place) copy.emplace(c, x);
    const T* const p = in_place ? x.data<T>() : static_cast<const T*>(*copy);
    run(matrix(p, x.size(0), x.size(1), in_place ? x.strides()[0] : x.size(1)), rows, columns, codes, turned);
  });
  rows.finish(), columns.finish();
}

// --- values of codes ----------------------------------------------------------------------------------------------
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    dequantize_packs(const int8_t* codes, const float* absmax, int64_t absmax_step, int64_t n, int64_t packs, T* y) {
  for (GridLoop g(packs); g; ++g) {
    const int64_t at = *g * V;
    const int64_t row = at >> 32 == 0 && n >> 32 == 0 ? int64_t(uint32_t(at) / uint32_t(n)) : at / n;
    const auto q = reinterpret_cast<const Vec<int8_t, V>*>(codes)[*g];
    const Decoder value(absmax[row * absmax_step]);
    Vec<T, V> v;
#pragma unroll
    for (int e = 0; e < V; ++e) v.x[e] = narrow<T>(value(q.x[e]));
    reinterpret_cast<Vec<T, V>*>(y)[*g] = v;
  }
}
void dequantize(const op::Dequantize&, Bufs in, Bufs out, Context& c) {
  const Buf& y = out[0];
  if (y.numel() == 0) return;
  const int64_t n = y.shape().back(), step = in[1].numel() == 1 ? 0 : 1;
  const Dense<int8_t> codes(c, in[0]);
  const Dense<float> absmax(c, in[1]);
  const int8_t* const q = codes;
  const float* const a = absmax;
  visit_input(y.dtype(), [&]<class T>() {
    constexpr int V = kVec<T>;
    T* const to = y.data<T>();
    const bool packs = n % V == 0 && aligned16(q) && aligned16(to);
    const int64_t count = packs ? y.numel() / V : y.numel();
    launch(c, packs ? dequantize_packs<T, V> : dequantize_packs<T, 1>, blocks_for(c, count, kThreads), kThreads, 0, q,
           a, step, n, count, to);
  });
}
TG_STRIDED_KERNEL(op::QuantizeRowwise, cuda, quantize_rowwise);
TG_STRIDED_KERNEL(op::QuantizeGlobal, cuda, quantize_global);
TG_STRIDED_KERNEL(op::QuantizeBothWays, cuda, quantize_both_ways);
TG_STRIDED_KERNEL(op::Dequantize, cuda, dequantize);
}  // namespace
}  // namespace tg::cuda
