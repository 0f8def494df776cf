// Kernels of ops/quantized/quantize.h but the product (int8_linear.cu), and of GELU before codes. Rows that fit in
// registers are read once. All of x at once, a matrix whose columns lie together, and both ways at once take two
// passes, of magnitudes and of codes.
#include <tapegrad/cuda/device/code_tiles.h>
#include <tapegrad/cuda/device/rows.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/switchback_mlp.h>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

// --- rows ---------------------------------------------------------------------------------------------------------
struct AsIs {
  template <class T> static __device__ __forceinline__ T f(T x) { return x; }
};
// What comes of an activation, rounded as its own kernel does.
template <class F> struct After {
  template <class T> static __device__ __forceinline__ T f(T x) { return narrow<T>(F::f(widen(x))); }
};
// Codes of F of each row.
template <class S, class F>
__global__ void __launch_bounds__(S::kBlock) quantize_rows(const typename S::T* x, int64_t step, int8_t* codes,
                                                           State state, int64_t rows, int64_t n, Watch watch) {
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
    const Coder code(absmax);
    each_pack<S>(n, [&](int k, int64_t j) {
      const Pack& v = pack(k, j);
      Vec<int8_t, S::V> q;
#pragma unroll
      for (int e = 0; e < S::V; ++e) q.x[e] = code(value(v.x[e]));
      store16(codes + r * n + j, q);
    });
    if (threadIdx.x % S::kThreads == 0) state.set(r, absmax);
    if (watch.bad(absmax))
#pragma unroll 1
      for (int64_t j = threadIdx.x % S::kThreads; j < n; j += S::kThreads) watch(p[j], r * n + j);
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
  if (n <= 2048) return f.template operator()<RowShape<T, 256, 1, 8>>();
  return f.template operator()<RowShape<T, 512, 1, 0>>();
}

// --- all of x, as it lies in memory -------------------------------------------------------------------------------
template <class T>
__global__ void __launch_bounds__(kThreads)
    largest_of_all(const T* x, int64_t n, int64_t packs, uint32_t* most, Watch watch) {
  constexpr int V = kVec<T>;
  uint32_t own = 0;
  for (GridLoop g(packs); g; ++g) {
    const auto v = load16(x + *g * V);
#pragma unroll
    for (int e = 0; e < V; ++e) own = larger(own, magnitude(v.x[e]));
  }
  for (GridLoop g(n - packs * V); g; ++g) own = larger(own, magnitude(x[packs * V + *g]));
  if (watch.bad(as_f32<T>(own))) {
#pragma unroll 1
    for (GridLoop g(packs); g; ++g)
#pragma unroll 1
      for (int e = 0; e < V; ++e) watch(x[*g * V + e], *g * V + e);
#pragma unroll 1
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
  for (GridLoop g(packs); g; ++g) {
    const auto v = load16(x + *g * V);
    Vec<int8_t, V> q;
#pragma unroll
    for (int e = 0; e < V; ++e) q.x[e] = code(value(v.x[e]));
    store16(codes + *g * V, q);
  }
  for (GridLoop g(n - packs * V); g; ++g) codes[packs * V + *g] = code(value(x[packs * V + *g]));
}
__global__ void __launch_bounds__(kThreads) narrow_states(const uint32_t* most, f16* state, int64_t n) {
  for (GridLoop g(n); g; ++g) state[*g] = f16(math::detail::float_of(most[*g]));
}

// --- the host's side ----------------------------------------------------------------------------------------------
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
  int64_t tall = 128;
  while (tall < kTallest && across * ((x.rows + tall - 1) / tall) > blocks_for(c, int64_t(1) << 40, 1)) tall *= 2;
  launch(c, largest_in_tiles<kOf, T>, blocks_for(c, across * ((x.rows + tall - 1) / tall), 1), kTileThreads, 0, x, tall,
         rows, columns, watch);
}
template <bool kBoth, class T>
void encode(const Context& c, const Matrix<T>& x, Most rows, Most columns, int8_t* codes, int8_t* turned) {
  using Tile = TurnedTile<kVec<T>>;
  const int64_t tiles = (x.cols + Tile::kWide - 1) / Tile::kWide * ((x.rows + Tile::kTall - 1) / Tile::kTall);
  launch(c, encode_tiles<kBoth, T>, blocks_for(c, tiles, 1), kTileThreads, 0, x, rows, columns, codes, turned,
         x.rows % 16 == 0 && aligned16(turned));
}

template <class T, class F> void encode_rows(Context& c, const Buf& x, Bufs out, const Watch& watch) {
  const int64_t rows = out[1].numel(), n = x.shape().back();
  int8_t* const codes = out[0].data<int8_t>();
  const Strided<1> walk(Shape(x.shape().begin(), x.shape().end() - 1),
                        {Strides(x.strides().begin(), x.strides().end() - 1)});
  const bool in_place = walk.dims <= 1 && (x.strides().back() == 1 || n == 1);
  std::optional<Dense<T>> copy;
  if (!in_place) copy.emplace(c, x);
  const T* const p = in_place ? x.data<T>() : static_cast<const T*>(*copy);
  const int64_t step = in_place && walk.dims == 1 ? walk.stride[0][0] : n;
  visit_shape<T>(n, rows_in_vectors<T>(n, p, codes) && step % kVec<T> == 0, [&]<class S>() {
    launch_per_row<S>(c, rows, quantize_rows<S, F>, p, step, codes, State(out[1]), rows, n, watch);
  });
}
void quantize_rowwise(const op::QuantizeRowwise& op, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &state = out[1];
  if (x.numel() == 0) return clear(c, first_element(state), int64_t(state.layout->bytes()));
  const Watch watch(c, x, op.state);
  tg::detail::visit_quantisable(x.dtype(), [&]<class T>() {
    if (!lies_in_columns(x)) return encode_rows<T, AsIs>(c, x, out, watch);
    const Matrix<T> m = turned_matrix<T>(x);
    const Magnitudes most(c, state);
    find_largest<Of::columns>(c, m, nullptr, most.words(), watch);
    encode<false>(c, m, {}, {most.words(), 1}, nullptr, out[0].data<int8_t>());
    most.finish();
  });
}
void gelu_quantize(const op::GeluQuantize& op, Bufs in, Bufs out, Context& c) {
  const Buf& h = in[0];
  if (h.numel() == 0) return clear(c, first_element(out[1]), int64_t(out[1].layout->bytes()));
  const Watch watch(c, h, DType::f32);
  const auto run = [&]<class T>() {
    op.by_tanh ? encode_rows<T, After<op::GeluTanh>>(c, h, out, watch)
               : encode_rows<T, After<op::Gelu>>(c, h, out, watch);
  };
  h.dtype() == DType::f32 ? run.template operator()<float>() : run.template operator()<bf16>();
}
void quantize_global(const op::QuantizeGlobal& op, Bufs in, Bufs out, Context& c) {
  const Buf& x = in[0];
  const int64_t n = x.numel();
  int8_t* const codes = out[0].data<int8_t>();
  if (n == 0) return clear(c, first_element(out[1]), int64_t(out[1].layout->bytes()));
  const Watch watch(c, x, op.state);
  const Magnitudes most(c, out[1]);
  tg::detail::visit_quantisable(x.dtype(), [&]<class T>() {
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
  tg::detail::visit_quantisable(x.dtype(), [&]<class T>() {
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
    const auto q = load16<V>(codes + *g * V);
    const float of_row = absmax[row * absmax_step];
    if (!usual(of_row)) {
#pragma unroll 1
      for (int e = 0; e < V; ++e) y[at + e] = narrow<T>(value_of(codes[at + e], of_row));
      continue;
    }
    Vec<T, V> v;
#pragma unroll
    for (int e = 0; e < V; ++e) v.x[e] = narrow<T>(usual_value(q.x[e], of_row));
    store16(y + *g * V, v);
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
  tg::detail::visit_quantisable(y.dtype(), [&]<class T>() {
    constexpr int V = kVec<T>;
    T* const to = y.data<T>();
    const bool packs = n % V == 0 && aligned16(q) && aligned16(to);
    const int64_t count = packs ? y.numel() / V : y.numel();
    launch(c, packs ? dequantize_packs<T, V> : dequantize_packs<T, 1>, blocks_for(c, count, kThreads), kThreads, 0, q,
           a, step, n, count, to);
  });
}
TG_STRIDED_KERNEL(op::QuantizeRowwise, cuda, quantize_rowwise);
TG_STRIDED_KERNEL(op::GeluQuantize, cuda, gelu_quantize);
TG_STRIDED_KERNEL(op::QuantizeGlobal, cuda, quantize_global);
TG_STRIDED_KERNEL(op::QuantizeBothWays, cuda, quantize_both_ways);
TG_STRIDED_KERNEL(op::Dequantize, cuda, dequantize);
}  // namespace
}  // namespace tg::cuda
