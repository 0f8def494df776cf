// Exponentials needed twice go through scratch in the compute dtype: 16-bit results are rounded once. The output may
// reuse an input.
#include <tapegrad/cpu/kernel.h>
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/cpu/simd/scratch.h>
#include <tapegrad/ops/softmax.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
thread_local Scratch t_rows;

// One row's exponentials (arithmetic) overlap the scaling of the row before (memory).
void softmax(const op::Softmax&, Bufs in, Bufs out, Context&) {
  const int64_t n = out[0].shape().back(), total = out[0].numel();
  if (total == 0) return;
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows<T> x(in[0]);
    for_row_tiles(total / n, n, [&](int64_t begin, int64_t end) {
      C* e = t_rows.get<C>(2 * whole_vectors<C>(n));
      C* before = e + whole_vectors<C>(n);
      std::vector<T> gathered;
      C scale = 0;
      T* y = out[0].data<T>() + begin * n;
      const auto write = [&]<class V>(int64_t j) { store(y + j, V(load<V>(before + j) * scale)); };
      for (int64_t r = begin; r < end; ++r) {
        const T* p = x(r, gathered);
        const C top = top_of<C>(n, p);
        C sum;
        if (r == begin) {
          sum = sum_of_exp(n, p, top, [e](int64_t j, const auto& v) { store(e + j, v); });
        } else {
          sum = sum_of_exp(n, p, top, [=]<class V>(int64_t j, const V& v) {
            store(e + j, v);
            store(y + j, V(load<V>(before + j) * scale));
          });
          y += n;
        }
        scale = C(1) / sum;
        std::swap(e, before);
      }
      for_lanes<C>(n, write);
    });
  });
}
void softmax_grad(const op::SoftmaxGrad&, Bufs in, Bufs out, Context&) {
  for_each_row({in[0], in[1]}, out[0], []<class T>(int64_t n, T* dx, const T* y, const T* dy) {
    using C = compute_t<T>;
    const auto [s] =
        lane_sums<1, C>(n, [&]<class V>(int64_t j) { return std::array<V, 1>{load<V>(dy + j) * load<V>(y + j)}; });
    for_lanes<C>(n, [&, c = s]<class V>(int64_t j) { store(dx + j, V(load<V>(y + j) * (load<V>(dy + j) - c))); });
  });
}
void log_softmax(const op::LogSoftmax&, Bufs in, Bufs out, Context&) {
  for_each_row({in[0]}, out[0], []<class T>(int64_t n, T* y, const T* x) {
    using C = compute_t<T>;
    const C top = top_of<C>(n, x), log_sum = math::log(sum_of_exp(n, x, top));
    for_lanes<C>(n, [&]<class V>(int64_t j) { store(y + j, V((load<V>(x + j) - top) - log_sum)); });
  });
}
void log_softmax_grad(const op::LogSoftmaxGrad&, Bufs in, Bufs out, Context&) {
  for_each_row({in[0], in[1]}, out[0], []<class T>(int64_t n, T* dx, const T* y, const T* dy) {
    using C = compute_t<T>;
    const auto [s] = lane_sums<1, C>(n, [&]<class V>(int64_t j) { return std::array<V, 1>{load<V>(dy + j)}; });
    for_lanes<C>(
        n, [&, c = s]<class V>(int64_t j) { store(dx + j, V(load<V>(dy + j) - exp_to_zero(load<V>(y + j)) * c)); });
  });
}
TG_STRIDED_KERNEL(op::LogSoftmax, cpu, log_softmax);
TG_STRIDED_KERNEL(op::LogSoftmaxGrad, cpu, log_softmax_grad);
TG_STRIDED_KERNEL(op::Softmax, cpu, softmax);
TG_STRIDED_KERNEL(op::SoftmaxGrad, cpu, softmax_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
