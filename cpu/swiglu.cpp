// Kernels of ops/swiglu.h: a row at a time, each half read and written once.
#include <tapegrad/core/math.h>
#include <tapegrad/cpu/rows.h>
#include <tapegrad/ops/swiglu.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class T> void forward_row(int64_t n, const T* x, T* y) {
  using C = compute_t<T>;
  TG_SAME_INDEX
  for (int64_t j = 0; j < n; ++j) {
    const C gate = C(x[j]);
    y[j] = T(gate * math::sigmoid(gate) * C(x[n + j]));
  }
}
// dx may be x.
template <class T> void backward_row(int64_t n, const T* x, const T* dy, T* dx) {
  using C = compute_t<T>;
  TG_SAME_INDEX
  for (int64_t j = 0; j < n; ++j) {
    const C gate = C(x[j]), value = C(x[n + j]), grad = C(dy[j]), s = math::sigmoid(gate);
    dx[j] = T(grad * value * s * (C(1) + gate * (C(1) - s)));
    dx[n + j] = T(grad * gate * s);
  }
}
void swiglu(const op::Swiglu&, Bufs in, Bufs out, Context&) {
  visit_float(out[0].dtype(), [&]<class T>() {
    const int64_t n = out[0].shape().back();
    if (out[0].numel() == 0) return;
    const Rows<T> x(in[0]);
    for_row_tiles(out[0].numel() / n, n, [&](int64_t begin, int64_t end) {
      std::vector<T> scratch;
      for (int64_t r = begin; r < end; ++r) forward_row(n, x(r, scratch), out[0].data<T>() + r * n);
    });
  });
}
void swiglu_grad(const op::SwigluGrad&, Bufs in, Bufs out, Context&) {
  visit_float(out[0].dtype(), [&]<class T>() {
    const int64_t n = in[1].shape().back();
    if (out[0].numel() == 0) return;
    const Rows<T> x(in[0]), dy(in[1]);
    for_row_tiles(in[1].numel() / n, n, [&](int64_t begin, int64_t end) {
      std::vector<T> x_scratch, dy_scratch;
      for (int64_t r = begin; r < end; ++r)
        backward_row(n, x(r, x_scratch), dy(r, dy_scratch), out[0].data<T>() + r * 2 * n);
    });
  });
}
TG_STRIDED_KERNEL(op::Swiglu, cpu, swiglu);
TG_STRIDED_KERNEL(op::SwigluGrad, cpu, swiglu_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
