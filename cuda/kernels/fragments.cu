// A warp per fragment; a block per row takes the softmax.
#include <tapegrad/core/math.h>
#include <tapegrad/cuda/device/small_m.h>
#include <tapegrad/ops/fragments.h>
#include <tapegrad/ops/indexing.h>

#include <limits>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

Error not_finite(const IndexSite& s, int64_t position, int64_t value) {
  return tg::kernel::score_not_finite(position / s.size, position % s.size, std::bit_cast<double>(value), s.index);
}
// scores (rows, F): scratch.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    fragment_weights_rows(const T* x, const T* selector, compute_t<T>* scores, T* y, int64_t rows, int64_t f, int64_t d,
                          IndexCheck check) {
  using C = compute_t<T>;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    C* const z = scores + r * f;
    for (int64_t k = warp; k < f; k += kThreads / 32) {
      const T *a = x + (r * f + k) * d, *b = selector + k * d;
      C sum = 0;
      for (int64_t i = int64_t(lane) * V; i < d; i += 32 * V) {
        const auto p = load16<V>(a + i), q = load16<V>(b + i);
#pragma unroll
        for (int e = 0; e < V; ++e) sum += widen(p.x[e]) * widen(q.x[e]);
      }
      sum = warp_all<SumOp>(sum);
      if (lane != 0) continue;
      z[k] = sum;
      if (!(math::abs(sum) < std::numeric_limits<C>::infinity()))
        check.note(__builtin_bit_cast(int64_t, double(sum)), r * f + k);
    }
    __syncthreads();
    C top = -std::numeric_limits<C>::infinity(), total = 0;
    for (int64_t k = threadIdx.x; k < f; k += kThreads) top = MaxOp()(top, z[k]);
    top = block_all<MaxOp, kThreads>(top, -std::numeric_limits<C>::infinity());
    for (int64_t k = threadIdx.x; k < f; k += kThreads) total += math::exp(z[k] - top);
    total = block_all<SumOp, kThreads>(total, C(0));
    const C scale = C(1) / total;
    for (int64_t k = threadIdx.x; k < f; k += kThreads) y[r * f + k] = narrow<T>(math::exp(z[k] - top) * scale);
    __syncthreads();  // scores are read
  }
}
void fragment_weights(const op::FragmentWeights&, Bufs in, Bufs out, Context& c) {
  const int64_t f = in[1].size(0), d = in[1].size(1), rows = out[0].numel() / f;
  if (out[0].numel() == 0) return;
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const T *x = in[0].data<T>(), *s = in[1].data<T>();
    const Scratch scores(c, size_t(rows * f) * sizeof(C));
    const IndexCheck check(c, {not_finite, c.op, *in[0].layout, 0, f});
    const bool vectors = d % kVec<T> == 0 && aligned16(x) && aligned16(s);
    launch(c, vectors ? fragment_weights_rows<T, kVec<T>> : fragment_weights_rows<T, 1>, blocks_for(c, rows, 1),
           kThreads, 0, x, s, scores.as<C>(), out[0].data<T>(), rows, f, d, check);
  });
}

Error outside_matrices(const IndexSite& s, int64_t position, int64_t value) {
  return tg::kernel::index_outside(s.op, value, {position}, s.index, 0, s.size);
}
void index_matmul(const op::IndexMatmul& op, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  const Buf &a = in[0], &b = in[1], &index = in[2];
  const int64_t count = b.size(0), step = b.size(1) * b.size(2);
  const NamedMatrices named{Ids(first_element(index), index.dtype()), count, step,
                            IndexCheck(c, {outside_matrices, c.op, *index.layout, 0, count})};
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    multiply_named(c,
                   SmallM<T>{a.data<T>(), a.size(0), a.size(1), b.data<T>(), out[0].size(1), a.size(1), b.size(2),
                             nullptr, out[0].data<T>()},
                   op.trans_b, named);
  });
}
TG_KERNEL(op::FragmentWeights, cuda, fragment_weights);
TG_KERNEL(op::IndexMatmul, cuda, index_matmul);
}  // namespace
}  // namespace tg::cuda
