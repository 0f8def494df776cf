// Quantization, also after GELU; int8_linear.cu has the GEMM.
#include <tapegrad/cuda/device/quantize_tiles.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/switchback_mlp.h>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

// --- rows
// Rounds like the activation's own kernel.
template <class F> struct After {
  template <class T> static __device__ __forceinline__ T f(T x) { return narrow<T>(F::f(widen(x))); }
};
// --- all of x, in memory order
template <class T>
__global__ void __launch_bounds__(kThreads)
    absmax_of_all(const T* x, int64_t n, int64_t packs, uint32_t* most, NonFiniteCheck watch) {
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
    quantize_all(const T* x, int64_t n, int64_t packs, const uint32_t* most, int8_t* codes) {
  constexpr int V = kVec<T>;
  const Int8Quantizer quantized(*most);
  for (GridLoop g(packs); g; ++g) {
    const auto v = load16(x + *g * V);
    Vec<int8_t, V> q;
#pragma unroll
    for (int e = 0; e < V; ++e) q.x[e] = quantized(value(v.x[e]));
    store16(codes + *g * V, q);
  }
  for (GridLoop g(n - packs * V); g; ++g) codes[packs * V + *g] = quantized(value(x[packs * V + *g]));
}
// --- host
void quantize_rowwise(const op::QuantizeRowwise& op, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &state = out[1];
  if (x.numel() == 0) return clear(c, first_element(state), int64_t(state.layout->bytes()));
  const NonFiniteCheck watch(c, x, op.absmax_dtype);
  tg::detail::visit_quantizable(x.dtype(), [&]<class T>() { quantize_rows_of<Int8Quantizer, T>(c, x, out, watch); });
}
void gelu_quantize(const op::GeluQuantize& op, Bufs in, Bufs out, Context& c) {
  const Buf& h = in[0];
  if (h.numel() == 0) return clear(c, first_element(out[1]), int64_t(out[1].layout->bytes()));
  const NonFiniteCheck watch(c, h, DType::f32);
  const auto run = [&]<class T>() {
    op.by_tanh ? quantize_each_row<Int8Quantizer, After<op::GeluTanh>, T>(c, h, out, watch)
               : quantize_each_row<Int8Quantizer, After<op::Gelu>, T>(c, h, out, watch);
  };
  h.dtype() == DType::f32 ? run.template operator()<float>() : run.template operator()<bf16>();
}
void quantize_global(const op::QuantizeGlobal& op, Bufs in, Bufs out, Context& c) {
  const Buf& x = in[0];
  const int64_t n = x.numel();
  int8_t* const codes = out[0].data<int8_t>();
  if (n == 0) return clear(c, first_element(out[1]), int64_t(out[1].layout->bytes()));
  const NonFiniteCheck watch(c, x, op.absmax_dtype);
  const AbsmaxWords most(c, out[1]);
  tg::detail::visit_quantizable(x.dtype(), [&]<class T>() {
    if (has_contiguous_columns(x)) {
      const Matrix<T> m = transposed_matrix<T>(x);
      find_absmax<Of::all>(c, m, nullptr, most.words(), watch);
      return quantize_tiled<false, Int8Quantizer>(c, m, {}, {most.words(), 0}, nullptr, codes);
    }
    const Dense<T> dense(c, x);
    const T* const p = dense;
    const int64_t packs = aligned16(p) && aligned16(codes) ? n / kVec<T> : 0;
    const unsigned blocks = blocks_for(c, packs ? packs : n, kThreads);
    launch(c, absmax_of_all<T>, blocks, kThreads, 0, p, n, packs, most.words(), watch);
    launch(c, quantize_all<T>, blocks, kThreads, 0, p, n, packs, most.words(), codes);
  });
  most.finish();
}
void quantize_rows_and_columns(const op::QuantizeRowsAndColumns& op, Bufs in, Bufs out, Context& c) {
  const Buf& x = in[0];
  if (x.numel() == 0) {
    for (const size_t k : {1, 3}) clear(c, first_element(out[k]), int64_t(out[k].layout->bytes()));
    return;
  }
  const NonFiniteCheck watch(c, x, op.absmax_dtype);
  const AbsmaxWords rows(c, out[1]), columns(c, out[3]);
  int8_t *codes = out[0].data<int8_t>(), *transposed = out[2].data<int8_t>();
  tg::detail::visit_quantizable(x.dtype(), [&]<class T>() {
    const auto run = [&](const Matrix<T>& m, const AbsmaxWords& of_rows, const AbsmaxWords& of_columns, int8_t* q,
                         int8_t* q_transposed) {
      find_absmax<Of::both>(c, m, of_rows.words(), of_columns.words(), watch);
      quantize_tiled<true, Int8Quantizer>(c, m, {of_rows.words(), 1}, {of_columns.words(), 1}, q, q_transposed);
    };
    if (has_contiguous_columns(x)) return run(transposed_matrix<T>(x), columns, rows, transposed, codes);
    const bool in_place = x.strides()[1] == 1 && x.strides()[0] >= x.size(1);
    std::optional<Dense<T>> copy;
    if (!in_place) copy.emplace(c, x);
    const T* const p = in_place ? x.data<T>() : static_cast<const T*>(*copy);
    run(matrix(p, x.size(0), x.size(1), in_place ? x.strides()[0] : x.size(1)), rows, columns, codes, transposed);
  });
  rows.finish(), columns.finish();
}

// --- dequantization
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
  tg::detail::visit_quantizable(y.dtype(), [&]<class T>() {
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
TG_STRIDED_KERNEL(op::QuantizeRowsAndColumns, cuda, quantize_rows_and_columns);
TG_STRIDED_KERNEL(op::Dequantize, cuda, dequantize);
}  // namespace
}  // namespace tg::cuda
