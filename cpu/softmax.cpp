// Kernels of ops/softmax.h: a row at a time. Exponentials that are needed twice go through a scratch row in the compute
// dtype, so that the output may take over an input and 16-bit results are rounded once.
#include <tapegrad/cpu/exp.h>
#include <tapegrad/cpu/rows.h>
#include <tapegrad/cpu/sums.h>
#include <tapegrad/ops/softmax.h>

#include <utility>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
// row(n, scratch, y, x...) for each row y of the output and x of each of the N inputs, all of n elements and n >= 1.
// scratch keeps its size between rows.
template <size_t N, class F> void for_each_row(Bufs in, Bufs out, F&& row) {
  const int64_t n = out[0].shape().back(), total = out[0].numel();
  if (total == 0) return;
  visit_float(out[0].dtype(), [&]<class T>() {
    [&]<size_t... K>(std::index_sequence<K...>) {
      const Rows<T> x[] = {Rows<T>(in[K])...};
      for_row_tiles(total / n, n, [&](int64_t begin, int64_t end) {
        std::vector<T> gathered[N];
        std::vector<compute_t<T>> scratch;
        for (int64_t r = begin; r < end; ++r) row(n, scratch, out[0].data<T>() + r * n, x[K](r, gathered[K])...);
      });
    }(std::make_index_sequence<N>());
  });
}

void softmax(const op::Softmax&, Bufs in, Bufs out, Context&) {
  for_each_row<1>(in, out, []<class T, class C>(int64_t n, std::vector<C>& scratch, T* y, const T* x) {
    scratch.resize(size_t(n));
    C* const e = scratch.data();
    const C top = top_of<C>(n, x);
    const C scale = C(1) / lane_sum<C>(n, [&](int64_t j) { return e[j] = exp_to_zero(C(x[j]) - top); });
    for (int64_t j = 0; j < n; ++j) y[j] = T(e[j] * scale);
  });
}
void softmax_grad(const op::SoftmaxGrad&, Bufs in, Bufs out, Context&) {
  for_each_row<2>(in, out, []<class T, class C>(int64_t n, std::vector<C>& scratch, T* dx, const T* y, const T* dy) {
    scratch.resize(size_t(n));
    C* const g = scratch.data();
    const C s = lane_sum<C>(n, [&](int64_t j) { return C(dy[j]) * C(y[j]); });
    for (int64_t j = 0; j < n; ++j) g[j] = C(y[j]) * (C(dy[j]) - s);
    for (int64_t j = 0; j < n; ++j) dx[j] = T(g[j]);
  });
}
void log_softmax(const op::LogSoftmax&, Bufs in, Bufs out, Context&) {
  for_each_row<1>(in, out, []<class T, class C>(int64_t n, std::vector<C>&, T* y, const T* x) {
    const C top = top_of<C>(n, x);
    const C log_sum = math::log(lane_sum<C>(n, [&](int64_t j) { return exp_to_zero(C(x[j]) - top); }));
    TG_SAME_INDEX
    for (int64_t j = 0; j < n; ++j) y[j] = T((C(x[j]) - top) - log_sum);
  });
}
void log_softmax_grad(const op::LogSoftmaxGrad&, Bufs in, Bufs out, Context&) {
  for_each_row<2>(in, out, []<class T, class C>(int64_t n, std::vector<C>&, T* dx, const T* y, const T* dy) {
    const C s = lane_sum<C>(n, [&](int64_t j) { return C(dy[j]); });
    TG_SAME_INDEX
    for (int64_t j = 0; j < n; ++j) dx[j] = T(C(dy[j]) - exp_to_zero(C(y[j])) * s);
  });
}
TG_STRIDED_KERNEL(op::LogSoftmax, cpu, log_softmax);
TG_STRIDED_KERNEL(op::LogSoftmaxGrad, cpu, log_softmax_grad);
TG_STRIDED_KERNEL(op::Softmax, cpu, softmax);
TG_STRIDED_KERNEL(op::SoftmaxGrad, cpu, softmax_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
