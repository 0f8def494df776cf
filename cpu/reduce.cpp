// Kernel of ops/reduce.h. The input is read as (outer, reduced, inner) where that is possible without a copy, else
// through a contiguous scratch copy with the reduced dimensions last.
#include <tapegrad/cpu/loop.h>
#include <tapegrad/cpu/sums.h>
#include <tapegrad/ops/reduce.h>

#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
constexpr int64_t kChunk = 4096;  // elements one partial sum covers

// Integers add up in 64 bits, 16-bit floats in f32.
template <class T> using Acc = std::conditional_t<std::is_integral_v<T>, int64_t, compute_t<T>>;

// y[o] = sum of the row x[o * n .. + n): partial sums of chunks, added in order.
template <class T> void sum_rows(const T* x, T* y, int64_t rows, int64_t n) {
  using A = Acc<T>;
  const int64_t chunks = std::max<int64_t>(1, (n + kChunk - 1) / kChunk);
  std::vector<A> part(size_t(rows * chunks));
  const int64_t per_tile = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, std::min(n, kChunk)));
  parallel_for(rows * chunks, per_tile, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t % chunks * kChunk;
      const T* p = x + t / chunks * n + first;
      part[size_t(t)] = lane_sum<A>(std::min(kChunk, n - first), [&](int64_t i) { return A(p[i]); });
    }
  });
  for (int64_t o = 0; o < rows; ++o) {
    A s = 0;
    for (int64_t c = 0; c < chunks; ++c) s += part[size_t(o * chunks + c)];
    y[o] = T(s);
  }
}
// y[o][j] = sum over r of x[o][r][j]: blocks of columns, rows in order within chunks of 128.
template <class T> void sum_columns(const T* x, T* y, int64_t outer, int64_t n, int64_t inner) {
  using A = Acc<T>;
  constexpr int64_t kRows = 128;
  const int64_t width = std::clamp<int64_t>(kGrain / std::max<int64_t>(1, n), 64, 512),
                blocks = (inner + width - 1) / width;
  parallel_for(outer * blocks, [&](int64_t t) {
    const int64_t o = t / blocks, first = t % blocks * width, w = std::min(width, inner - first);
    A total[512] = {}, part[512];
    for (int64_t r0 = 0; r0 < n; r0 += kRows) {
      std::fill(part, part + w, A(0));
      for (int64_t r = r0; r < std::min(n, r0 + kRows); ++r) {
        const T* p = x + (o * n + r) * inner + first;
        for (int64_t j = 0; j < w; ++j) part[j] += A(p[j]);
      }
      for (int64_t j = 0; j < w; ++j) total[j] += part[j];
    }
    for (int64_t j = 0; j < w; ++j) y[o * inner + first + j] = T(total[j]);
  });
}

void sum(const Sum& op, Bufs in, Bufs out, Context&) {
  const Shape& s = in[0].shape();
  int64_t outer = 1, n = 1, inner = 1;
  bool together = in[0].is_contiguous();  // the reduced dimensions are neighbours
  for (size_t d = 0, phase = 0; d < s.size(); ++d) {
    const bool r = op.dims >> d & 1;
    if (r && phase == 2 && s[d] != 1) together = false;
    if (r)
      phase = std::max<size_t>(phase, 1), n *= s[d];
    else if (phase == 0)
      outer *= s[d];
    else if (s[d] != 1)
      phase = 2, inner *= s[d];
    else
      inner *= s[d];
  }
  visit_number(out[0].dtype(), [&]<class T>() {
    T* y = out[0].data<T>();
    if (out[0].numel() == 0) return;
    if (together)
      return inner == 1 ? sum_rows(in[0].data<T>(), y, outer, n) : sum_columns(in[0].data<T>(), y, outer, n, inner);
    std::vector<T> copy(size_t(in[0].numel()));
    Shape order;
    Strides from;
    for (const bool reduced : {false, true})
      for (size_t d = 0; d < s.size(); ++d)
        if (bool(op.dims >> d & 1) == reduced) order.push_back(s[d]), from.push_back(in[0].strides()[d]);
    T* c = copy.data();
    for_each<1>(order, {from}, [&, x = in[0].data<T>()](int64_t at) { *c++ = x[at]; });
    sum_rows(copy.data(), y, out[0].numel(), n);
  });
}
TG_KERNEL(Sum, cpu, sum);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
