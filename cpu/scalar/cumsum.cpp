// Chunk totals of long rows come first; columns are adjacent lanes. The order of additions depends on sizes alone.
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/cpu/simd/sums.h>
#include <tapegrad/ops/reduce.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
constexpr int64_t kChunk = 4096;

// Every element rounds, so f32 accumulates in f64.
template <class T>
using Acc = std::conditional_t<std::is_integral_v<T>, uint64_t,
                               std::conditional_t<std::is_same_v<T, float>, double, compute_t<T>>>;
// Integers wrap, as unsigned numbers.
template <class T> Acc<T> widened(T x) { return Acc<T>(compute_t<T>(x)); }

struct Order {  // element i of the sum is at at(i)
  int64_t n;
  bool reverse;
  int64_t at(int64_t i) const { return reverse ? n - 1 - i : i; }
};

template <class T> void scan_rows(const T* x, T* y, int64_t rows, const Order& order) {
  using A = Acc<T>;
  const int64_t n = order.n, chunks = (n + kChunk - 1) / kChunk;
  std::vector<A> before(size_t(rows * chunks));  // sums of earlier chunks
  const auto each_chunk = [&](auto f) {
    over_rows(rows * chunks, std::min(n, kChunk), [&](int64_t t) {
      const int64_t first = t % chunks * kChunk;
      f(size_t(t), t / chunks * n, first, std::min(n, first + kChunk));
    });
  };
  if (chunks > 1) {
    each_chunk([&](size_t t, int64_t row, int64_t begin, int64_t end) {
      before[t] = lane_sum<A>(end - begin, [&](int64_t i) { return widened(x[row + order.at(begin + i)]); });
    });
    for (int64_t r = 0; r < rows; ++r) {
      A sum = 0;
      for (int64_t c = 0; c < chunks; ++c) sum += std::exchange(before[size_t(r * chunks + c)], sum);
    }
  }
  each_chunk([&](size_t t, int64_t row, int64_t begin, int64_t end) {
    A sum = before[t];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = row + order.at(i);
      sum += widened(x[at]);
      y[at] = T(sum);
    }
  });
}
template <class T> void scan_columns(const T* x, T* y, int64_t outer, const Order& order, int64_t inner) {
  using A = Acc<T>;
  constexpr int64_t kWidth = 512;
  const int64_t width = std::clamp<int64_t>(kGrain / order.n, 256, kWidth), blocks = (inner + width - 1) / width;
  parallel_for(outer * blocks, [&](int64_t t) {
    const int64_t o = t / blocks, first = t % blocks * width, w = std::min(width, inner - first);
    A sum[kWidth] = {};
    for (int64_t i = 0; i < order.n; ++i) {
      const int64_t at = (o * order.n + order.at(i)) * inner + first;
      TG_SAME_INDEX
      for (int64_t j = 0; j < w; ++j) {
        sum[j] += widened(x[at + j]);
        y[at + j] = T(sum[j]);
      }
    }
  });
}
void cumsum(const op::Cumsum& op, Bufs in, Bufs out, Context&) {
  const Shape& s = out[0].shape();
  if (out[0].numel() == 0) return;
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < op.dim; ++d) outer *= s[d];
  for (size_t d = op.dim + 1; d < s.size(); ++d) inner *= s[d];
  const Order order{s[op.dim], op.reverse};
  kernel::visit_number(out[0].dtype(), [&]<class T>() {
    std::vector<T> copy;
    const T* x = contiguous_data(in[0], copy);
    T* y = out[0].data<T>();
    inner == 1 ? scan_rows(x, y, outer, order) : scan_columns(x, y, outer, order, inner);
  });
}
TG_STRIDED_KERNEL(op::Cumsum, cpu, cumsum);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
