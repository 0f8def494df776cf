// Kernels of ops/softmax.h: a row at a time. Exponentials that are needed twice go through a scratch row in the compute
// dtype, so that the output may take over an input and 16-bit results are rounded once.
#include <tapegrad/core/math.h>
#include <tapegrad/cpu/rows.h>
#include <tapegrad/cpu/sums.h>
#include <tapegrad/ops/softmax.h>

#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
void softmax(const Softmax&, Bufs in, Bufs out, Context&) {
  const int64_t n = in[0].shape().back(), total = in[0].numel();
  if (total == 0) return;
  visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows<T> x(in[0]);
    for_row_tiles(total / n, n, [&](int64_t begin, int64_t end) {
      std::vector<T> scratch;
      std::vector<C> row(static_cast<size_t>(n));
      C* const e = row.data();
      for (int64_t r = begin; r < end; ++r) {
        const T* p = x(r, scratch);
        T* y = out[0].data<T>() + r * n;
        const C top = lane_max<C>(n, [&](int64_t j) { return C(p[j]); });
        for (int64_t j = 0; j < n; ++j) e[j] = math::exp(C(p[j]) - top);
        const C scale = C(1) / lane_sum<C>(n, [&](int64_t j) { return e[j]; });
        for (int64_t j = 0; j < n; ++j) y[j] = T(e[j] * scale);
      }
    });
  });
}
void softmax_grad(const SoftmaxGrad&, Bufs in, Bufs out, Context&) {
  const int64_t n = in[0].shape().back(), total = in[0].numel();
  if (total == 0) return;
  visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows<T> y(in[0]), dy(in[1]);
    for_row_tiles(total / n, n, [&](int64_t begin, int64_t end) {
      std::vector<T> y_scratch, dy_scratch;
      std::vector<C> row(static_cast<size_t>(n));
      C* const g = row.data();
      for (int64_t r = begin; r < end; ++r) {
        const T *p = y(r, y_scratch), *d = dy(r, dy_scratch);
        T* dx = out[0].data<T>() + r * n;
        const C s = lane_sum<C>(n, [&](int64_t j) { return C(d[j]) * C(p[j]); });
        for (int64_t j = 0; j < n; ++j) g[j] = C(p[j]) * (C(d[j]) - s);
        for (int64_t j = 0; j < n; ++j) dx[j] = T(g[j]);
      }
    });
  });
}
void log_softmax(const LogSoftmax&, Bufs in, Bufs out, Context&) {
  const int64_t n = in[0].shape().back(), total = in[0].numel();
  if (total == 0) return;
  visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows<T> x(in[0]);
    for_row_tiles(total / n, n, [&](int64_t begin, int64_t end) {
      std::vector<T> scratch;
      for (int64_t r = begin; r < end; ++r) {
        const T* p = x(r, scratch);
        T* y = out[0].data<T>() + r * n;
        const C top = lane_max<C>(n, [&](int64_t j) { return C(p[j]); });
        const C log_sum = math::log(lane_sum<C>(n, [&](int64_t j) { return math::exp(C(p[j]) - top); }));
        TG_SAME_INDEX
        for (int64_t j = 0; j < n; ++j) y[j] = T((C(p[j]) - top) - log_sum);
      }
    });
  });
}
void log_softmax_grad(const LogSoftmaxGrad&, Bufs in, Bufs out, Context&) {
  const int64_t n = in[0].shape().back(), total = in[0].numel();
  if (total == 0) return;
  visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows<T> y(in[0]), dy(in[1]);
    for_row_tiles(total / n, n, [&](int64_t begin, int64_t end) {
      std::vector<T> y_scratch, dy_scratch;
      for (int64_t r = begin; r < end; ++r) {
        const T *p = y(r, y_scratch), *d = dy(r, dy_scratch);
        T* dx = out[0].data<T>() + r * n;
        const C s = lane_sum<C>(n, [&](int64_t j) { return C(d[j]); });
        TG_SAME_INDEX
        for (int64_t j = 0; j < n; ++j) dx[j] = T(C(d[j]) - math::exp(C(p[j])) * s);
      }
    });
  });
}
TG_KERNEL(LogSoftmax, cpu, log_softmax);
TG_KERNEL(LogSoftmaxGrad, cpu, log_softmax_grad);
TG_KERNEL(Softmax, cpu, softmax);
TG_KERNEL(SoftmaxGrad, cpu, softmax_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
