// A block of rows passes both GEMMs, so x a stays in L1. A row's sums do not depend on the block.
#include <tapegrad/cpu/gemm/gemm.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/ops/lora.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
constexpr int64_t kParallel = 1 << 17;  // multiply-adds, about 5 us; fewer run serially

// Whole register tiles at every level. Blocks pack A themselves, so they are few, and equal where rows do not depend on
// them.
int64_t block_rows(int64_t rows) {
  if (!kRowsAlone) return 24;
  const int64_t threads = num_threads(), blocks = threads * std::max<int64_t>(1, ceil_div(rows, 48 * threads));
  return std::max<int64_t>(12, ceil_div(rows, blocks));
}

// A matrix in its compute dtype; bf16 is copied.
template <class T> struct Matrix {
  std::vector<compute_t<T>> wide;
  MatView<compute_t<T>> view;
  explicit Matrix(const Buf& b) {
    const int64_t rows = b.size(0), cols = b.size(1), down = b.strides()[0], across = b.strides()[1];
    if constexpr (std::is_same_v<T, compute_t<T>>) {
      view = {b.data<T>(), down, across};
    } else {
      wide.resize(size_t(rows * cols));
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) wide[size_t(i * cols + j)] = b.data<T>()[i * down + j * across];
      view = {wide.data(), cols, 1};
    }
  }
};
struct Sizes {
  int64_t rows, in, r, out;
};

template <class T>
void block(const op::Lora& op, const Sizes& s, int64_t first, int64_t n, const Rows<T>& x, const Matrix<T>& a,
           const Matrix<T>& b, const Rows<T>* base, T* y, T* h) {
  using C = compute_t<T>;
  constexpr bool same = std::is_same_v<T, C>;
  thread_local std::vector<C> wide, inner, result;
  std::vector<T> scratch;
  MatView<C> xs{nullptr, s.in, 1};
  if (same && x.whole) {
    xs.p = reinterpret_cast<const C*>(x(first, scratch));
  } else {
    wide.resize(size_t(n * s.in));
    for (int64_t i = 0; i < n; ++i) {
      const T* row = x(first + i, scratch);
      for (int64_t j = 0; j < s.in; ++j) wide[size_t(i * s.in + j)] = C(row[j]);
    }
    xs.p = wide.data();
  }
  inner.resize(size_t(n * s.r));
  gemm_serial<C>(n, s.r, s.in, xs, a.view, inner.data(), s.r);
  for (int64_t i = 0; i < n * s.r; ++i) {
    const T rounded = T(inner[size_t(i)]);
    h[first * s.r + i] = rounded;
    inner[size_t(i)] = C(rounded) * C(op.scale);
  }
  C* to;
  if constexpr (same) {
    to = y + first * s.out;
  } else {
    result.resize(size_t(n * s.out));
    to = result.data();
  }
  if (base)
    for (int64_t i = 0; i < n; ++i) {
      const T* row = (*base)(first + i, scratch);
      if (static_cast<const void*>(row) == to + i * s.out) continue;  // y reuses base's memory
      for (int64_t j = 0; j < s.out; ++j) to[i * s.out + j] = C(row[j]);
    }
  gemm_serial<C>(n, s.out, s.r, {inner.data(), s.r, 1}, b.view, to, s.out, {.accumulate = base != nullptr});
  if constexpr (!same)
    for (int64_t i = 0; i < n * s.out; ++i) y[first * s.out + i] = T(to[i]);
}

void lora(const op::Lora& op, Bufs in, Bufs out, Context&) {
  const Sizes s{out[1].size(0), in[1].size(0), in[1].size(1), in[2].size(1)};
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    const Rows<T> x(in[0]);
    const Matrix<T> a(in[1]), b(in[2]);
    std::optional<Rows<T>> base;
    if (in.size() > 3) base.emplace(in[3]);
    const int64_t rows = block_rows(s.rows);
    for_tiles(s.rows * s.r * (s.in + s.out) >= kParallel, ceil_div(s.rows, rows), [&](int64_t tile) {
      const int64_t first = tile * rows;
      block<T>(op, s, first, std::min(rows, s.rows - first), x, a, b, base ? &*base : nullptr, out[0].data<T>(),
               out[1].data<T>());
    });
  });
}
TG_STRIDED_KERNEL(op::Lora, cpu, lora);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
