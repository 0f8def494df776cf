#include <tapegrad/cpu/gemm/gemm_bf16.h>
#include <tapegrad/cpu/simd/exp.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/cpu/simd/scratch.h>
#include <tapegrad/cpu/simd/sums.h>
#include <tapegrad/ops/fragments.h>
#include <tapegrad/ops/indexing.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
thread_local Scratch t_scores, t_from, t_to;

template <class C, class T> C score(int64_t n, const T* x, const T* s) {
  return lane_sum<C>(n, [&](int64_t j) { return C(x[j]) * C(s[j]); });
}
void fragment_weights(const op::FragmentWeights&, Bufs in, Bufs out, Context&) {
  const int64_t f = in[1].size(0), d = in[1].size(1), rows = out[0].numel() / f;
  if (out[0].numel() == 0) return;
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const T *x = in[0].data<T>(), *s = in[1].data<T>();
    std::atomic<int64_t> bad = rows;
    for_row_tiles(rows, f * d, [&](int64_t begin, int64_t end) {
      C* const z = t_scores.get<C>(f);
      for (int64_t r = begin; r < end; ++r) {
        bool finite = true;
        for (int64_t k = 0; k < f; ++k) {
          z[k] = score<C>(d, x + (r * f + k) * d, s + k * d);
          finite &= std::isfinite(z[k]);
        }
        for (int64_t least = bad; !finite && r < least && !bad.compare_exchange_weak(least, r);) {
        }
        const C top = *std::max_element(z, z + f);
        const C scale = C(1) / lane_sum<C>(f, [&](int64_t k) { return z[k] = exp_to_zero(z[k] - top); });
        for (int64_t k = 0; k < f; ++k) out[0].data<T>()[r * f + k] = T(z[k] * scale);
      }
    });
    if (bad == rows) return;
    for (int64_t k = 0; k < f; ++k)
      if (const C z = score<C>(d, x + (bad * f + k) * d, s + k * d); !std::isfinite(z))
        throw tg::kernel::score_not_finite(bad, k, double(z), *in[0].layout);
  });
}

std::vector<int64_t> grouped(const std::vector<int64_t>& index) {
  std::vector<int64_t> order(index.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int64_t(i);
  std::ranges::stable_sort(order, {}, [&](int64_t i) { return index[size_t(i)]; });
  return order;
}
void index_matmul(const op::IndexMatmul& op, Bufs in, Bufs out, Context&) {
  const Buf &a = in[0], &b = in[1], &to = out[0];
  const int64_t n = to.size(1), k = a.size(1), matrices = b.size(0);
  const std::vector<int64_t> index = flat_indices(in[2]);
  for (size_t i = 0; i < index.size(); ++i)
    if (uint64_t(index[i]) >= uint64_t(matrices))
      throw tg::kernel::index_outside(op::IndexMatmul::kName, index[i], {int64_t(i)}, *in[2].layout, 0, matrices);
  if (to.numel() == 0) return;
  const std::vector<int64_t> order = grouped(index);
  kernel::visit_float(to.dtype(), [&]<class T>() {
    T* const y = to.data<T>();
    for (size_t i = 0, end; i < order.size(); i = end) {
      const int64_t matrix = index[size_t(order[i])];
      for (end = i + 1; end < order.size() && index[size_t(order[end])] == matrix;) ++end;
      const auto rows = int64_t(end - i);
      MatView<T> x{a.data<T>() + order[i] * k, k, 1};
      T* into = y + order[i] * n;
      if (rows > 1) {
        T* const copy = t_from.get<T>(rows * k);
        for (int64_t r = 0; r < rows; ++r) std::copy_n(a.data<T>() + order[i + size_t(r)] * k, k, copy + r * k);
        x.p = copy, into = t_to.get<T>(rows * n);
      }
      const auto& s = b.strides();
      const MatView<T> w{b.data<T>() + matrix * s[0], s[1], s[2]};
      gemm<T>(rows, n, k, x, op.trans_b ? w.transposed() : w, into, n);
      for (int64_t r = 0; rows > 1 && r < rows; ++r) std::copy_n(into + r * n, n, y + order[i + size_t(r)] * n);
    }
  });
}
TG_KERNEL(op::FragmentWeights, cpu, fragment_weights);
TG_KERNEL(op::IndexMatmul, cpu, index_matmul);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
