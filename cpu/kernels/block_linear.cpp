// Many rows of x: panels of the weight are dequantized into scratch, then multiplied. Few rows: a vector of the
// weight's rows is dequantized block by block in L1. The bits are those of linear() on the dequantized weight: a GEMM's
// elements do not depend on other columns if there are more than a vector.
#include <tapegrad/cpu/gemm/gemm_bf16.h>
#include <tapegrad/cpu/runtime/product_path.h>
#include <tapegrad/cpu/simd/block_rows.h>
#include <tapegrad/cpu/simd/quantized.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/cpu/simd/scratch.h>
#if TG_ISA_LEVEL >= 3
#include <tapegrad/cpu/gemm/gemm_small_m.h>
#include <tapegrad/cpu/simd/block_lanes.h>
#endif
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/quantized/block_linear.h>
#include <tapegrad/ops/quantized/inputs.h>

#include <atomic>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
using tg::detail::BlockFormats, tg::detail::BlockLayout, tg::detail::visit_block_format, tg::detail::layout_of_block;
constexpr int64_t kPanelBytes = 1 << 22;
constexpr int64_t kFewColumns = 32;  // sums of fewer depend on their number
thread_local Scratch t_panel;
struct Parts {
  const BlockFormats& formats;
  Bufs codes;
  const uint8_t* row(size_t part, int64_t r) const { return codes[part].data<uint8_t>() + r * codes[part].size(1); }
  int64_t rows() const {
    int64_t n = 0;
    for (const Buf& b : codes) n += b.size(0);
    return n;
  }
  // Elements [first, first + n) of row r, in whole blocks.
  template <class T> void dequantize(int64_t r, int64_t first, int64_t n, T* to) const {
    size_t part = 0;
    for (; r >= codes[part].size(0); ++part) r -= codes[part].size(0);
    dequantize_blocks(formats[part], row(part, r), first, n, to);
  }
};

void block_rows(const op::BlockRows& op, Bufs in, Bufs out, Context&) {
  const int64_t n = out[0].shape().back();
  const Parts parts{op.formats, in.subspan(1)};
  const int64_t size = parts.rows();
  const std::vector<int64_t> ids = flat_indices(in[0]);
  for (size_t i = 0; i < ids.size(); ++i)
    if (uint64_t(ids[i]) >= uint64_t(size))
      throw tg::kernel::index_outside(op.kName, ids[i], tg::detail::position_of(int64_t(i), in[0].shape()),
                                      *in[0].layout, 0, size);
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    over_rows(int64_t(ids.size()), n,
              [&](int64_t i) { parts.dequantize(ids[size_t(i)], 0, n, out[0].data<T>() + i * n); });
  });
}

// Calls f(first, count) for panels of n columns in units.
template <class F> void for_panels(int64_t n, int64_t bytes_of_column, int64_t unit, F&& f) {
  const int64_t some = std::max(unit, kPanelBytes / std::max<int64_t>(1, bytes_of_column) / unit * unit);
  for (int64_t j = 0, count; j < n; j += count) {
    count = !kRowsAlone || n - j < some + kFewColumns ? n - j : some;
    f(j, count);
  }
}

#if TG_ISA_LEVEL >= 3
constexpr int64_t kSerial = 1 << 18;  // elements of a weight; fewer are read by one thread
thread_local Scratch t_bytes, t_values, t_sums;
// Values of lanes in the form of a policy of small_m, kUnit in 32 bits.
template <class W> struct Panel : small_m::ScalarFma<float> {
  TG_INLINE static void put(float* to, int64_t step, Vector<float> x, Vector<float> y) {
    if constexpr (std::is_same_v<W, small_m::Widened>) {
      x = reinterpret_cast<Vector<float>>(rounded_to_bf16(x) & 0xffff0000u);
      y = reinterpret_cast<Vector<float>>(rounded_to_bf16(y) & 0xffff0000u);
    }
    store_vector(to, x), store_vector(to + step, y);
  }
};
#if TG_ISA_LEVEL == 4
template <> struct Panel<small_m::Pairs> : small_m::Pairs {
  using T = float;
  static small_m::Bits<float> row(const float* b, int64_t, int64_t) { return small_m::load_bits<float>(b); }
  TG_INLINE static void put(float* to, int64_t, Vector<float> x, Vector<float> y) {
    const auto pair = rounded_to_bf16(x) >> 16 | (rounded_to_bf16(y) & 0xffff0000u);
    store_vector(to, reinterpret_cast<Vector<float>>(pair));
  }
};
#endif
// y (m, n) = x W^T for m <= small_m::kMost; put(i, j, n, sums) stores n columns of row i from j on.
template <class W, class Put>
void few_rows(int64_t m, int64_t k, MatView<typename W::T> x, const Parts& parts, Put&& put) {
  constexpr int64_t L = kVector<float>, kSegment = 256;
  const small_m::PackedRows<W> a(m, k, x);
  const bool two = m <= small_m::kGroup / 2;  // hides the latency of a chain
  const int64_t wide = two ? 2 * L : L;
  int64_t first = 0;
  for (size_t part = 0; part < parts.formats.size(); first += parts.codes[part++].size(0))
    visit_block_format(parts.formats[part], [&]<BlockFormat F>() {
      constexpr int64_t kElements = layout_of_block(F).elements, kBytes = layout_of_block(F).bytes,
                        kBlocks = kSegment / kElements;
      const int64_t rows = parts.codes[part].size(0);
      const auto strip = [&](int64_t s) {
        const uint8_t* row[2 * L];
        for (int64_t r = 0; r < wide; ++r) row[r] = parts.row(part, std::min(rows - 1, s * wide + r));
        uint8_t* const bytes = t_bytes.get<uint8_t>(kBlocks * kBytes * L);
        float* const values = t_values.get<float>(kSegment * wide);
        float *const sums = t_sums.get<float>(2 * m * wide), *const totals = sums + m * wide;
        int64_t border = std::min(k, a.depth);
        for (int64_t q = 0; q < k; q += kSegment) {
          const int64_t terms = std::min(kSegment, k - q), blocks = terms / kElements;
          for (int64_t v = 0; v < wide; v += L) {
            transpose_bytes(row + v, blocks * kBytes, bytes);
            for (int64_t b = 0; b < blocks; ++b) {
              float* const to = values + b * kElements / W::kUnit * wide + v;
              dequantize_lanes<F>(
                  bytes + b * kBytes * L, [&](int i, Vector<float> one, Vector<float> next)
                                              __attribute__((always_inline)) {
                                                Panel<W>::put(to + i / W::kUnit * wide, wide, one, next);
                                              });
            }
          }
          for (int64_t r = 0; r < wide; ++r) row[r] += blocks * kBytes;
          for (int64_t t = q, end; t < q + terms; t = end) {
            end = std::min(q + terms, border);
            const int64_t begin = (border - 1) / a.depth * a.depth;
            const small_m::Part chain{t == begin, end == border, begin == 0, false};
            a.for_groups([&](int64_t i, int64_t some) {
              const auto tile = two ? small_m::kRowsTiles<Panel<W>, 2>[size_t(some - 1) % (small_m::kGroup / 2)]
                                    : small_m::kRowsTiles<Panel<W>>[size_t(some - 1)];
              tile(end - t, a.at(i, some, t), values + (t - q) / W::kUnit * wide, wide / W::kUnit, sums + i * L,
                   totals + i * L, chain, nullptr);
            });
            if (end == border) border = std::min(k, border + a.depth);
          }
        }
        for (int64_t i = 0; i < m; ++i)
          for (int64_t v = 0; v < wide && s * wide + v < rows; v += L)
            put(i, first + s * wide + v, std::min(L, rows - s * wide - v), totals + v * m + i * L);
      };
      const int64_t strips = ceil_div(rows, wide), some = rows * k >= kSerial ? (1 << 15) / (wide * k) : strips;
      parallel_for(strips, std::max<int64_t>(1, some), [&](int64_t b, int64_t e) {
        for (int64_t s = b; s < e; ++s) strip(s);
      });
    });
}
// False unless gemm() would take the path for few rows.
template <class T, class Put>
bool by_few_rows(int64_t m, int64_t n, int64_t k, MatView<T> x, const Parts& parts, Put&& put) {
  if (m > small_m::kMost || n <= 16 || k < 8) return false;
  if constexpr (std::is_same_v<T, float>) {
    few_rows<small_m::ScalarFma<float>>(m, k, x, parts, put);
    return true;
  } else if constexpr (std::is_same_v<T, bf16>) {
    const Bf16Path path = bf16_path();
    if (path == Bf16Path::f32) return few_rows<small_m::Widened>(m, k, x, parts, put), true;
#if TG_ISA_LEVEL == 4
    if (path == Bf16Path::avx512) return few_rows<small_m::Pairs>(m, k, x, parts, put), true;
#endif
  }
  return false;
}
#endif

template <class T, class Y> void block_linear(const op::BlockLinear& op, Bufs in, Bufs out) {
  using C = compute_t<T>;
  const Parts parts{op.formats, in.subspan(1, op.formats.size())};
  const int64_t n = out[0].shape().back(), k = in[0].shape().back(), m = out[0].numel() / n;
  const MatView<T> x{in[0].data<T>(), k, 1};
  const T* const bias = in.size() > 1 + op.formats.size() ? in.back().data<T>() : nullptr;
  Y* const y = out[0].data<Y>();
#if TG_ISA_LEVEL >= 3
  const auto put = [=](int64_t i, int64_t j, int64_t count, const float* sums) {
    Y* const to = y + i * n + j;
    for (int64_t s = 0; s < count; ++s) to[s] = Y(bias ? C(sums[s]) + C(bias[j + s]) : C(sums[s]));
  };
  if (by_few_rows<T>(m, n, k, x, parts, put)) return;
#endif
  for_panels(n, k * int64_t(sizeof(T)), kFewColumns, [&](int64_t first, int64_t count) {
    T* const panel = t_panel.get<T>(count * k);
    over_rows(count, k, [&](int64_t r) { parts.dequantize(first + r, 0, k, panel + r * k); });
    if constexpr (!std::is_same_v<T, Y>) {
      gemm<T>(m, count, k, x, {panel, 1, k}, nullptr, n, {.unrounded = y + first});
    } else {
      const auto add_bias = [=](C* row, int64_t j, int64_t columns) {
        for (int64_t s = 0; s < columns; ++s) row[s] += C(bias[first + j + s]);
      };
      const FunctionRef<void(C*, int64_t, int64_t)> finish(add_bias);
      gemm_as(op.precision, m, count, k, x, MatView<T>{panel, 1, k}, y + first, n,
              {.finish = bias ? &finish : nullptr});
    }
  });
}
void block_linear(const op::BlockLinear& op, Bufs in, Bufs out, Context&) {
  if (out[0].numel() == 0) return;
  if (op.unrounded) return block_linear<bf16, float>(op, in, out);
  kernel::visit_float(out[0].dtype(), [&]<class T>() { block_linear<T, T>(op, in, out); });
}
void block_linear_grad(const op::BlockLinearGrad& op, Bufs in, Bufs out, Context&) {
  if (out[0].numel() == 0) return;
  const Parts parts{op.formats, in.subspan(1)};
  const int64_t n = in[0].shape().back(), k = out[0].shape().back(), m = out[0].numel() / k;
  int64_t unit = kFewColumns;
  for (const BlockFormat f : op.formats) unit = std::max<int64_t>(unit, layout_of_block(f).elements);
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    const MatView<T> dy{in[0].data<T>(), n, 1};
    for_panels(k, n * int64_t(sizeof(T)), unit, [&](int64_t first, int64_t count) {
      T* const panel = t_panel.get<T>(n * count);
      over_rows(n, count, [&](int64_t r) { parts.dequantize(r, first, count, panel + r * count); });
      gemm_as(op.precision, m, count, n, dy, MatView<T>{panel, count, 1}, out[0].data<T>() + first, k);
    });
  });
}
void quantize(const op::QuantizeNf4& op, Bufs in, Bufs out, Context&) {
  std::atomic<bool> bad = false;
  tg::detail::visit_quantizable(in[0].dtype(), [&]<class T>() {
    over_rows(in[0].numel() / 64, 64, [&](int64_t b) {
      float x[64];
      for (int i = 0; i < 64; ++i) x[i] = float(in[0].data<T>()[b * 64 + i]);
      if (!tg::detail::quantize_nf4_block(x, out[0].data<uint8_t>() + b * 36)) bad = true;
    });
  });
  if (bad) fail_without_code(op.kName, in[0], DType::f32);
}
TG_KERNEL(op::QuantizeNf4, cpu, quantize);
TG_KERNEL(op::BlockLinear, cpu, block_linear);
TG_KERNEL(op::BlockLinearGrad, cpu, block_linear_grad);
TG_KERNEL(op::BlockRows, cpu, block_rows);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
