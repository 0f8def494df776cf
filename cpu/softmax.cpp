// Kernels of ops/softmax.h: a row at a time. Exponentials that are needed twice go through a scratch row in the compute
// dtype, so that the output may take over an input and 16-bit results are rounded once.
#include <tapegrad/cpu/exp.h>
#include <tapegrad/cpu/kernel.h>
#include <tapegrad/cpu/scratch.h>
#include <tapegrad/cpu/sums.h>
#include <tapegrad/ops/softmax.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
thread_local Scratch t_row;  // of exponentials or products

void softmax(const op::Softmax&, Bufs in, Bufs out, Context&) {
  for_each_row({in[0]}, out[0], []<class T>(int64_t n, T* y, const T* x) {
    using C = compute_t<T>;
    C* const e = t_row.get<C>(n);
    const C top = top_of<C>(n, x);
    const C scale = C(1) / lane_sum<C>(n, [&](int64_t j) { return e[j] = exp_to_zero(C(x[j]) - top); });
    for (int64_t j = 0; j < n; ++j) y[j] = T(e[j] * scale);
  });
}
void softmax_grad(const op::SoftmaxGrad&, Bufs in, Bufs out, Context&) {
  for_each_row({in[0], in[1]}, out[0], []<class T>(int64_t n, T* dx, const T* y, const T* dy) {
    using C = compute_t<T>;
    C* const g = t_row.get<C>(n);
    const C s = lane_sum<C>(n, [&](int64_t j) { return C(dy[j]) * C(y[j]); });
    for (int64_t j = 0; j < n; ++j) g[j] = C(y[j]) * (C(dy[j]) - s);
    for (int64_t j = 0; j < n; ++j) dx[j] = T(g[j]);
  });
}
void log_softmax(const op::LogSoftmax&, Bufs in, Bufs out, Context&) {
  for_each_row({in[0]}, out[0], []<class T>(int64_t n, T* y, const T* x) {
    using C = compute_t<T>;
    const C top = top_of<C>(n, x);
    const C log_sum = math::log(lane_sum<C>(n, [&](int64_t j) { return exp_to_zero(C(x[j]) - top); }));
    TG_SAME_INDEX
    for (int64_t j = 0; j < n; ++j) y[j] = T((C(x[j]) - top) - log_sum);
  });
}
void log_softmax_grad(const op::LogSoftmaxGrad&, Bufs in, Bufs out, Context&) {
  for_each_row({in[0], in[1]}, out[0], []<class T>(int64_t n, T* dx, const T* y, const T* dy) {
    using C = compute_t<T>;
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
