// Kernels of ops/softmax.h: a row at a time. Exponentials that are needed twice go through a scratch row in the compute
// dtype, so that 16-bit results are rounded once; the output may take over an input.
#include <tapegrad/cpu/kernel.h>
#include <tapegrad/cpu/lanes.h>
#include <tapegrad/cpu/scratch.h>
#include <tapegrad/ops/softmax.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
thread_local Scratch t_row;  // of exponentials

void softmax(const op::Softmax&, Bufs in, Bufs out, Context&) {
  for_each_row({in[0]}, out[0], []<class T>(int64_t n, T* y, const T* x) {
    using C = compute_t<T>;
    C* const e = t_row.get<C>(n);
    const C scale = C(1) / sum_of_exp(n, x, top_of<C>(n, x), [e](int64_t j, const auto& v) { store(e + j, v); });
    for_lanes<C>(n, [&]<class V>(int64_t j) { store(y + j, V(load<V>(e + j) * scale)); });
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
