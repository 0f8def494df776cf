// Kernels of ops/quantized/quantize.h. A row is read for its magnitude, and again from the cache for its codes.
// Columns, and all of a tensor, are read from memory twice.
#include <tapegrad/cpu/codes.h>
#include <tapegrad/cpu/gemm_int8.h>
#include <tapegrad/cpu/rows.h>
#include <tapegrad/cpu/scratch.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/quantized/codes.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/quantize.h>
#include <tapegrad/ops/quantized/switchback_mlp.h>

#include <atomic>
#include <cmath>
#include <cstring>

namespace tg::cpu::TG_ISA_NS {
namespace {
constexpr int64_t kSide = 64;  // a tile of codes that is transposed; a cache line

template <class T> uint32_t largest(const T* x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, magnitude_bits(float(x[i])));
  return most;
}
template <class T> void add_largest(const T* x, int64_t n, uint32_t* most) {
  TG_SAME_INDEX
  for (int64_t i = 0; i < n; ++i) most[i] = std::max(most[i], magnitude_bits(float(x[i])));
}
template <class T> void encode(const T* x, int64_t n, float absmax, int8_t* to) {
  if (!(absmax > 0)) return void(std::fill_n(to, n, int8_t(0)));
  for (int64_t i = 0; i < n; ++i) to[i] = int8_t(int32_t(code_of(float(x[i]), absmax)));
}
// Each column by its own magnitude; that of zeros is 1 here.
template <class T> void encode(const T* x, int64_t n, const float* absmax, int8_t* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = int8_t(int32_t(code_of(float(x[i]), absmax[i])));
}

// 16 x 16 bytes, transposed.
typedef uint8_t Bytes __attribute__((vector_size(16)));
inline void transpose_block(const int8_t* from, int64_t ld, int8_t* to, int64_t ld_to) {
  Bytes x[16], y[16];
  for (int64_t i = 0; i < 16; ++i) std::memcpy(&x[i], from + i * ld, 16);
  const auto stage = [](Bytes(&a)[16], Bytes(&b)[16]) {  // four times this turns rows into columns
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = __builtin_shufflevector(a[i], a[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      b[2 * i + 1] =
          __builtin_shufflevector(a[i], a[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
  };
  stage(x, y), stage(y, x), stage(x, y), stage(y, x);
  for (int64_t i = 0; i < 16; ++i) std::memcpy(to + i * ld_to, &x[i], 16);
}
// kSide rows of codes, as many as have been filled, on their way to columns.
constexpr int64_t kChunk = 2048, kPitch = kChunk + 64;  // of a row; no power of two, for the caches' sake
using Band = int8_t[kSide * kPitch];
// Codes (rows, cols) to columns ld apart, each written as a whole: lines that lie a power of two apart do not stay in
// the cache for a second visit.
void store_transposed(const Band& band, int64_t rows, int64_t cols, int8_t* to, int64_t ld) {
  alignas(64) int8_t lines[16 * kSide];
  for (int64_t j = 0; j < cols; j += 16) {
    for (int64_t i = 0; i < rows; i += 16) transpose_block(band + i * kPitch + j, kPitch, lines + i, kSide);
    for (int64_t k = 0; k < std::min<int64_t>(16, cols - j); ++k) {
      if (rows == kSide)
        std::memcpy(to + (j + k) * ld, lines + k * kSide, kSide);
      else
        std::memcpy(to + (j + k) * ld, lines + k * kSide, size_t(rows));
    }
  }
}
thread_local Scratch t_band, t_most, t_absmax;

// The largest magnitudes of places 0 to n of all lines, as bits. line(l, most) adds those of line l.
template <class F> const uint32_t* largest_by_place(int64_t lines, int64_t n, F&& line) {
  constexpr int64_t kParts = 16;
  const int64_t part = std::max<int64_t>(1, (lines + kParts - 1) / kParts);
  uint32_t* const most = t_most.get<uint32_t>(kParts * n);
  std::fill_n(most, kParts * n, 0u);
  parallel_for((lines + part - 1) / part, [&](int64_t q) {
    for (int64_t l = q * part; l < std::min(lines, (q + 1) * part); ++l) line(l, most + q * n);
  });
  for (int64_t q = 1; q < kParts; ++q)
    for (int64_t i = 0; i < n; ++i) most[i] = std::max(most[i], most[q * n + i]);
  return most;
}

// Rows of neighbours in memory, n of them, ld apart.
template <class T> struct Lines {
  const T* p;
  int64_t lines, n, ld;
};
// Of a matrix whose columns are neighbours in memory: they are the lines.
template <class T> bool lies_in_columns(const Buf& x) {
  return x.shape().size() == 2 && x.strides()[0] == 1 && x.strides()[1] >= x.size(0) && x.strides()[1] > 1;
}
template <class T> Lines<T> columns_of(const Buf& x) { return {x.data<T>(), x.size(1), x.size(0), x.strides()[1]}; }

// Codes of lines, transposed: (n, lines). encode_some(line, i, n, codes) makes those of n neighbours, from place i on.
// Whole lines are read, as hardware foresees.
template <class F> void encode_turned(int64_t lines, int64_t n, int8_t* to, F&& encode_some) {
  parallel_for((lines + kSide - 1) / kSide, [&](int64_t b) {
    Band& codes = *reinterpret_cast<Band*>(t_band.get<int8_t>(sizeof(Band)));
    const int64_t first = b * kSide, some = std::min(kSide, lines - first);
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t width = std::min(kChunk, n - i);
      for (int64_t s = 0; s < some; ++s) encode_some(first + s, i, width, codes + s * kPitch);
      store_transposed(codes, some, width, to + i * lines + first, lines);
    }
  });
}

// The state of a row; an Error is for the caller to find.
void set_state(const Buf& out, int64_t i, float absmax) {
  if (out.dtype() == DType::f16)
    out.data<f16>()[i] = f16(absmax);
  else
    out.data<float>()[i] = absmax;
}
// The states of places from their magnitudes, and by what to divide: 1 for a place of zeros. Null: is_bad().
const float* set_states(const Buf& out, int64_t n, const uint32_t* most) {
  float* const divisors = t_absmax.get<float>(n);
  for (int64_t i = 0; i < n; ++i) {
    if (is_bad(most[i], out.dtype())) return nullptr;
    const float absmax = math::detail::float_of(most[i]);
    set_state(out, i, absmax);
    divisors[i] = absmax > 0 ? absmax : 1.0f;
  }
  return divisors;
}
void quantize_rowwise(const op::QuantizeRowwise& op, Bufs in, Bufs out, Context&) {
  const Buf &x = in[0], &state = out[1];
  const int64_t rows = state.numel(), n = x.shape().back();
  int8_t* const codes = out[0].data<int8_t>();
  std::atomic<bool> bad = false;
  tg::detail::visit_quantisable(x.dtype(), [&]<class T>() {
    if (lies_in_columns<T>(x)) {
      const Lines<T> c = columns_of<T>(x);
      const uint32_t* const most =
          largest_by_place(c.lines, c.n, [&](int64_t l, uint32_t* to) { add_largest(c.p + l * c.ld, c.n, to); });
      const float* const absmax = set_states(state, c.n, most);
      if (!absmax) return bad.store(true);
      return encode_turned(c.lines, c.n, codes, [&](int64_t l, int64_t i, int64_t count, int8_t* to) {
        encode(c.p + l * c.ld + i, count, absmax + i, to);
      });
    }
    const Rows<T> row(x);
    for_row_tiles(rows, n, [&](int64_t begin, int64_t end) {
      std::vector<T> gathered;
      for (int64_t r = begin; r < end; ++r) {
        const T* const p = row(r, gathered);
        const uint32_t most = largest(p, n);
        if (is_bad(most, op.state)) return bad.store(true, std::memory_order_relaxed);
        const float absmax = math::detail::float_of(most);
        set_state(state, r, absmax);
        encode(p, n, absmax, codes + r * n);
      }
    });
  });
  if (bad) fail_without_code(op.name(), x, op.state);
}

// Some rows of GELU stay in the cache between their magnitudes and their codes. The kernel of GELU itself makes them:
// compilers may round another loop over it otherwise.
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
    for (int64_t r = begin; r < end; ++r) {
      const T* const y = x.data() + (r - begin) * n;
      const uint32_t most = largest(y, n);
      if (is_bad(most, DType::f32)) return bad.store(true, std::memory_order_relaxed);
      const float absmax = math::detail::float_of(most);
      set_state(out[1], r, absmax);
      encode(y, n, absmax, out[0].data<int8_t>() + r * n);
    }
  });
  if (bad) fail_without_code(op.name(), h, DType::f32);  // GELU of a finite number is finite
}
void gelu_quantize(const op::GeluQuantize& op, Bufs in, Bufs out, Context& c) {
  const auto run = [&]<class T>() {
    op.by_tanh ? gelu_quantize_rows<op::GeluTanh, T>(op, in[0], out, c)
               : gelu_quantize_rows<op::Gelu, T>(op, in[0], out, c);
  };
  in[0].dtype() == DType::f32 ? run.template operator()<float>() : run.template operator()<bf16>();
}

// f(p, at, n) for stretches of neighbours in memory that make up x, on the thread pool; `at` is the place of the first
// in row-major order. Elements that lie apart are copied to scratch.
template <class T, class F> void for_stretches(const Buf& x, F&& f) {
  using At = std::array<int64_t, 2>;
  for_rows<2>(x.shape(), {dense(x.shape()), x.strides()}, [&](int64_t n, const At& at, const At& step) {
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
  tg::detail::visit_quantisable(x.dtype(), [&]<class T>() {
    const bool in_columns = lies_in_columns<T>(x);
    std::atomic<uint32_t> most = 0;
    const auto see = [&](uint32_t m) {
      for (uint32_t now = most.load(std::memory_order_relaxed); m > now;)
        if (most.compare_exchange_weak(now, m, std::memory_order_relaxed)) break;
    };
    const Lines<T> c = in_columns ? columns_of<T>(x) : Lines<T>{};
    if (in_columns)
      for_row_tiles(c.lines, c.n, [&](int64_t begin, int64_t end) {
        for (int64_t l = begin; l < end; ++l) see(largest(c.p + l * c.ld, c.n));
      });
    else
      for_stretches<T>(x, [&](const T* p, int64_t, int64_t n) { see(largest(p, n)); });
    if (is_bad(most, op.state)) fail_without_code(op.name(), x, op.state);
    const float absmax = math::detail::float_of(most);
    set_state(out[1], 0, absmax);
    if (in_columns)
      encode_turned(c.lines, c.n, codes, [&](int64_t l, int64_t i, int64_t count, int8_t* to) {
        encode(c.p + l * c.ld + i, count, absmax, to);
      });
    else
      for_stretches<T>(x, [&](const T* p, int64_t at, int64_t n) { encode(p, n, absmax, codes + at); });
  });
}

void quantize_both_ways(const op::QuantizeBothWays& op, Bufs in, Bufs out, Context&) {
  const Buf& x = in[0];
  const int64_t m = x.size(0), n = x.size(1);
  int8_t *const codes = out[0].data<int8_t>(), *const turned = out[2].data<int8_t>();
  std::atomic<bool> bad = false;
  tg::detail::visit_quantisable(x.dtype(), [&]<class T>() {
    const Rows<T> row(x);
    const uint32_t* const most = largest_by_place(m, n, [&](int64_t r, uint32_t* to) {
      std::vector<T> gathered;
      const T* const p = row(r, gathered);
      const uint32_t of_row = largest(p, n);
      if (is_bad(of_row, op.state)) return bad.store(true, std::memory_order_relaxed);
      const float absmax = math::detail::float_of(of_row);
      set_state(out[1], r, absmax);
      encode(p, n, absmax, codes + r * n);
      add_largest(p, n, to);
    });
    if (bad) fail_without_code(op.name(), x, op.state);
    const float* const absmax = set_states(out[3], n, most);
    encode_turned(m, n, turned, [&](int64_t r, int64_t i, int64_t count, int8_t* to) {
      std::vector<T> gathered;
      encode(row(r, gathered) + i, count, absmax + i, to);
    });
  });
}

void dequantize(const op::Dequantize&, Bufs in, Bufs out, Context&) {
  const Buf &codes = in[0], &absmax = in[1];
  if (out[0].numel() == 0) return;
  const int64_t n = codes.shape().back();
  const auto of_row = flat<float, float>(absmax);
  const bool one = absmax.numel() == 1;
  const Rows<int8_t> row(codes);
  tg::detail::visit_quantisable(out[0].dtype(), [&]<class T>() {
    for_row_tiles(codes.numel() / n, n, [&](int64_t begin, int64_t end) {
      std::vector<int8_t> gathered;
      for (int64_t r = begin; r < end; ++r) {
        const int8_t* const q = row(r, gathered);
        const float a = of_row[one ? 0 : size_t(r)];
        T* const y = out[0].data<T>() + r * n;
        for (int64_t j = 0; j < n; ++j) y[j] = T(value_of(q[j], a));
      }
    });
  });
}

void int8_linear(const op::Int8Linear&, Bufs in, Bufs out, Context&) {
  const Buf &x = in[0], &w = in[1];
  if (out[0].numel() == 0) return;
  const int64_t n = w.size(0), k = w.size(1), m = out[0].numel() / n;
  // The rows of x by their stride where one stride leads through all of them, else copied.
  const Walk<1> rows(Shape(x.shape().begin(), x.shape().end() - 1),
                     {Strides(x.strides().begin(), x.strides().end() - 1)});
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
  tg::detail::visit_quantisable(out[0].dtype(), [&]<class T>() {
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
TG_STRIDED_KERNEL(op::QuantizeBothWays, cpu, quantize_both_ways);
TG_STRIDED_KERNEL(op::Dequantize, cpu, dequantize);
TG_STRIDED_KERNEL(op::Int8Linear, cpu, int8_linear);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
