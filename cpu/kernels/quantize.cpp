// A row is read from memory for its absmax, then from cache; columns and whole tensors twice from memory.
#include <tapegrad/cpu/gemm/gemm_int8.h>
#include <tapegrad/cpu/simd/quantized.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/cpu/simd/scratch.h>
#include <tapegrad/cpu/simd/transpose_quantized.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/quantize.h>
#include <tapegrad/ops/quantized/switchback_mlp.h>

#include <atomic>

namespace tg::cpu::TG_ISA_NS {
namespace {
constexpr int64_t kSide = 64;                   // elements gathered together
constexpr int64_t kInCache = int64_t(1) << 22;  // bytes that stay in cache for the second read
constexpr int64_t kPanel = 256;                 // columns, at least: contiguous runs

// Magnitudes order like their bits.
template <class T> using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
uint32_t magnitude(float x) { return magnitude_bits(x); }
template <class T> uint16_t magnitude(T x) { return uint16_t(x.bits & 0x7fff); }
template <class T> uint32_t widened(Bits<T> magnitude) {
  return magnitude_bits(float(__builtin_bit_cast(T, magnitude)));
}
// absmax, as the bits of a float.
template <class T> uint32_t largest(const T* x, int64_t n) {
  Bits<T> most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, magnitude(x[i]));
  return widened<T>(most);
}
template <class T>
void add_largest(const T* a, const T* b, const T* c, const T* d, int64_t n, Bits<T>* __restrict most) {
  for (int64_t i = 0; i < n; ++i)
    most[i] = std::max(std::max(most[i], magnitude(a[i])),
                       std::max(magnitude(b[i]), std::max(magnitude(c[i]), magnitude(d[i]))));
}
template <class T> void encode(const T* x, int64_t n, float absmax, int8_t* to) {
  if (!(absmax > 0)) return void(std::fill_n(to, n, int8_t(0)));
  if (has_factor<T>(absmax)) {
    const float factor = factor_of(absmax);
    for (int64_t i = 0; i < n; ++i) to[i] = int8_t(by_product(float(x[i]), factor));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = int8_t(by_quotient(float(x[i]), absmax));
  }
}
thread_local Scratch t_parts, t_most, t_absmax;

// absmax of columns [0, n) as bits of floats. Calls first(lines) before reading each range of lines.
template <class T, class F> const uint32_t* largest_by_place(const Lines<T>& x, F&& first) {
  constexpr int64_t kParts = 16, kTogether = 4;
  const int64_t part = std::max<int64_t>(1, (x.lines + kParts - 1) / kParts);
  uint32_t* const result = t_most.get<uint32_t>(x.n);
  Bits<T>* const most = t_parts.get<Bits<T>>(kParts * x.n);
  std::fill_n(most, kParts * x.n, Bits<T>(0));
  parallel_for((x.lines + part - 1) / part, [&](int64_t q) {
    const int64_t end = std::min(x.lines, (q + 1) * part);
    for (int64_t l = q * part; l < end; l += kTogether) {
      first(l, std::min(l + kTogether, end));
      const T *const a = x[l], *const b = x[std::min(l + 1, end - 1)], *const c = x[std::min(l + 2, end - 1)],
                     *const d = x[std::min(l + 3, end - 1)];
      add_largest(a, b, c, d, x.n, most + q * x.n);
    }
  });
  for (int64_t q = 1; q < kParts; ++q)
    for (int64_t i = 0; i < x.n; ++i) most[i] = std::max(most[i], most[q * x.n + i]);
  for (int64_t i = 0; i < x.n; ++i) result[i] = widened<T>(most[i]);
  return result;
}
template <class T> const uint32_t* largest_by_place(const Lines<T>& x) {
  return largest_by_place(x, [](int64_t, int64_t) {});
}

template <class T> bool lies_in_columns(const Buf& x) {
  return x.shape().size() == 2 && x.strides()[0] == 1 && x.strides()[1] >= x.size(0) && x.strides()[1] > 1;
}
template <class T> Lines<T> columns_of(const Buf& x) { return {x.data<T>(), x.size(1), x.size(0), x.strides()[1]}; }

// Callers check absmax for errors.
void set_state(const Buf& out, int64_t i, float absmax) {
  kernel::visit_among<f16, float>(out.dtype(), [&]<class T>() { out.data<T>()[i] = T(absmax); });
}
// Divisors, 1 for a row of zeros; null if is_bad().
const float* set_states(const Buf& out, int64_t first, int64_t n, const uint32_t* most) {
  float* const divisors = t_absmax.get<float>(n);
  for (int64_t i = 0; i < n; ++i) {
    if (is_bad(most[i], out.dtype())) return nullptr;
    const float absmax = math::detail::float_of(most[i]);
    set_state(out, first + i, absmax);
    divisors[i] = absmax > 0 ? absmax : 1.0f;
  }
  return divisors;
}
// Row r's values and absmax; false if is_bad().
template <class T> bool encode_row(const T* x, int64_t r, int64_t n, const Buf& codes, const Buf& state) {
  const uint32_t most = largest(x, n);
  if (is_bad(most, state.dtype())) return false;
  const float absmax = math::detail::float_of(most);
  set_state(state, r, absmax);
  encode(x, n, absmax, codes.data<int8_t>() + r * n);
  return true;
}
void quantize_rowwise(const op::QuantizeRowwise& op, Bufs in, Bufs out, Context&) {
  const Buf &x = in[0], &state = out[1];
  const int64_t n = x.shape().back();
  std::atomic<bool> bad = false;
  tg::detail::visit_quantizable(x.dtype(), [&]<class T>() {
    if (lies_in_columns<T>(x)) {
      const Lines<T> c = columns_of<T>(x);
      const int64_t wide =
          std::max(kPanel, kInCache / int64_t(sizeof(T)) / std::max<int64_t>(1, c.lines) / kPanel * kPanel);
      for (int64_t i = 0; i < c.n && !bad; i += wide) {
        const Lines<T> panel{c.p + i, c.lines, std::min(wide, c.n - i), c.ld};
        if (const float* const absmax = set_states(state, i, panel.n, largest_by_place(panel)))
          encode_transposed<1>(panel, absmax, out[0].data<int8_t>() + i * c.lines);
        else
          bad = true;
      }
      return;
    }
    over_rows<T>(x, state.numel(), [&](int64_t r, const T* p) {
      if (!encode_row(p, r, n, out[0], state)) bad = true;
    });
  });
  if (bad) fail_without_code(op.name(), x, op.absmax_dtype);
}

// Calls GELU's kernel: compilers may round another loop differently.
template <class F, class T> void gelu_quantize_rows(const op::GeluQuantize& op, const Buf& h, Bufs out, Context& c) {
  const int64_t n = h.shape().back();
  const Rows<T> row(h);
  std::atomic<bool> bad = false;
  for_row_tiles(out[1].numel(), n, [&](int64_t begin, int64_t end) {
    std::vector<T> x(static_cast<size_t>((end - begin) * n)), gathered;
    for (int64_t r = begin; r < end; ++r) std::copy_n(row(r, gathered), n, x.data() + (r - begin) * n);
    const Layout tile = Layout::contiguous({end - begin, n}, h.dtype());
    const Buf in_place{&tile, reinterpret_cast<std::byte*>(x.data())};
    Context own(c.device, c.op);
    stateless<op::Unary<F>>()->run({&in_place, 1}, {&in_place, 1}, own);
    for (int64_t r = begin; r < end; ++r)
      if (!encode_row(x.data() + (r - begin) * n, r, n, out[0], out[1])) bad = true;
  });
  if (bad) fail_without_code(op.name(), h, DType::f32);  // GELU of a finite number is finite
}
void gelu_quantize(const op::GeluQuantize& op, Bufs in, Bufs out, Context& c) {
  kernel::visit_among<float, bf16>(in[0].dtype(), [&]<class T>() {
    op.by_tanh ? gelu_quantize_rows<op::GeluTanh, T>(op, in[0], out, c)
               : gelu_quantize_rows<op::Gelu, T>(op, in[0], out, c);
  });
}

// Calls f(p, at, n) for contiguous segments, on the thread pool; `at`: row-major index. Strided elements use scratch.
template <class T, class F> void for_segments(const Buf& x, F&& f) {
  for_rows<2>(x.shape(), {dense(x.shape()), x.strides()}, [&](int64_t n, const At<2>& at, const At<2>& step) {
    const T* p = x.data<T>() + at[1];
    T some[kSide];
    if (step[1] == 1) return f(p, at[0], n);
    for (int64_t b = 0; b < n; b += kSide) {
      const int64_t count = std::min(kSide, n - b);
      for (int64_t i = 0; i < count; ++i) some[i] = p[(b + i) * step[1]];
      f(some, at[0] + b, count);
    }
  });
}
void quantize_global(const op::QuantizeGlobal& op, Bufs in, Bufs out, Context&) {
  const Buf& x = in[0];
  int8_t* const codes = out[0].data<int8_t>();
  tg::detail::visit_quantizable(x.dtype(), [&]<class T>() {
    const bool in_columns = lies_in_columns<T>(x);
    std::atomic<uint32_t> most = 0;
    const auto see = [&](uint32_t m) {
      for (uint32_t now = most.load(std::memory_order_relaxed); m > now;)
        if (most.compare_exchange_weak(now, m, std::memory_order_relaxed)) break;
    };
    const Lines<T> c = in_columns ? columns_of<T>(x) : Lines<T>{};
    if (in_columns)
      over_rows(c.lines, c.n, [&](int64_t l) { see(largest(c[l], c.n)); });
    else
      for_segments<T>(x, [&](const T* p, int64_t, int64_t n) { see(largest(p, n)); });
    if (is_bad(most, op.absmax_dtype)) fail_without_code(op.name(), x, op.absmax_dtype);
    const float absmax = math::detail::float_of(most);
    set_state(out[1], 0, absmax);
    const float divisor = absmax > 0 ? absmax : 1.0f;
    if (in_columns)
      encode_transposed<0>(c, &divisor, codes);
    else
      for_segments<T>(x, [&](const T* p, int64_t at, int64_t n) { encode(p, n, absmax, codes + at); });
  });
}

void quantize_rows_and_columns(const op::QuantizeRowsAndColumns& op, Bufs in, Bufs out, Context&) {
  const Buf& x = in[0];
  std::atomic<bool> bad = false;
  tg::detail::visit_quantizable(x.dtype(), [&]<class T>() {
    std::vector<T> copy;
    const bool in_columns = lies_in_columns<T>(x);  // then lines are columns
    const Lines<T> c = in_columns            ? columns_of<T>(x)
                       : x.strides()[1] == 1 ? Lines<T>{x.data<T>(), x.size(0), x.size(1), x.strides()[0]}
                                             : Lines<T>{contiguous_data<T>(x, copy), x.size(0), x.size(1), x.size(1)};
    const Bufs along = out.subspan(in_columns ? 2 : 0, 2), across = out.subspan(in_columns ? 0 : 2, 2);
    const auto encode_lines = [&](int64_t begin, int64_t end) {
      for (int64_t l = begin; l < end; ++l)
        if (!encode_row(c[l], l, c.n, along[0], along[1])) bad = true;
    };
    const uint32_t* const most = largest_by_place(c, encode_lines);
    if (bad) fail_without_code(op.name(), x, op.absmax_dtype);
    encode_transposed<1>(c, set_states(across[1], 0, c.n, most), across[0].data<int8_t>());
  });
}

void dequantize(const op::Dequantize&, Bufs in, Bufs out, Context&) {
  const Buf &codes = in[0], &absmax = in[1];
  if (out[0].numel() == 0) return;
  const int64_t n = codes.shape().back();
  const auto of_row = flat<float, float>(absmax);
  const bool one = absmax.numel() == 1;
  tg::detail::visit_quantizable(out[0].dtype(), [&]<class T>() {
    over_rows<int8_t>(codes, codes.numel() / n, [&](int64_t r, const int8_t* q) {
      const float a = of_row[one ? 0 : size_t(r)];
      T* const y = out[0].data<T>() + r * n;
      for (int64_t j = 0; j < n; ++j) y[j] = T(value_of(q[j], a));
    });
  });
}

void int8_linear(const op::Int8Linear&, Bufs in, Bufs out, Context&) {
  const Buf &x = in[0], &w = in[1];
  if (out[0].numel() == 0) return;
  const int64_t n = w.size(0), k = w.size(1), m = out[0].numel() / n;
  const Walk<1> rows(x.shape().without_last(), {x.strides().without_last()});
  MatView<int8_t> a{x.data<int8_t>(), rows.strides[0][0], x.strides().back()};
  std::vector<int8_t> copy;
  if (rows.shape.size() > 1) a = {contiguous_data<int8_t>(x, copy), k, 1};
  const MatView<int8_t> b = MatView<int8_t>{w.data<int8_t>(), w.strides()[0], w.strides()[1]}.transposed();
  if (in.size() == 2) {
    int32_t* const y = out[0].data<int32_t>();
    const auto store = [&](int64_t i, int64_t j, int64_t count, const int32_t* sums) {
      std::copy_n(sums, count, y + i * n + j);
    };
    return gemm_int8(m, n, k, a, b, store);
  }
  const auto absmax_x = flat<float, float>(in[2]);
  auto absmax_w = flat<float, float>(in[3]);
  if (absmax_w.size() == 1) absmax_w.assign(size_t(n), absmax_w[0]);
  const auto bias = in.size() > 4 ? flat<float, float>(in[4]) : std::vector<float>(size_t(n), 0.0f);
  const bool one = in[2].numel() == 1;
  tg::detail::visit_quantizable(out[0].dtype(), [&]<class T>() {
    T* const y = out[0].data<T>();
    const auto store = [&](int64_t i, int64_t j, int64_t count, const int32_t* sums) {
      const float sx = absmax_x[one ? 0 : size_t(i)];
      const float *const sw = absmax_w.data() + j, *const b_j = bias.data() + j;
      T* const to = y + i * n + j;
      for (int64_t s = 0; s < count; ++s) to[s] = T(scaled(sums[s], sx, sw[s], b_j[s]));
    };
    gemm_int8(m, n, k, a, b, store);
  });
}
TG_STRIDED_KERNEL(op::QuantizeRowwise, cpu, quantize_rowwise);
TG_STRIDED_KERNEL(op::GeluQuantize, cpu, gelu_quantize);
TG_STRIDED_KERNEL(op::QuantizeGlobal, cpu, quantize_global);
TG_STRIDED_KERNEL(op::QuantizeRowsAndColumns, cpu, quantize_rows_and_columns);
TG_STRIDED_KERNEL(op::Dequantize, cpu, dequantize);
TG_STRIDED_KERNEL(op::Int8Linear, cpu, int8_linear);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
