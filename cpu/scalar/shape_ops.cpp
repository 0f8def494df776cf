// Copies know elements by size.
#include <tapegrad/cpu/simd/loop.h>
#include <tapegrad/ops/shape_ops.h>

#include <cstring>

namespace tg::cpu::TG_ISA_NS {
namespace {
// ys: strides of the larger tensor.
template <class T> void copy_into(T* y, const Strides& ys, const Buf& x) {
  const T* from = x.raw<T>();
  using At = std::array<int64_t, 2>;
  for_rows<2>(x.shape(), {ys, x.strides()}, [&](int64_t n, At at, At step) {
    if (step[0] == 1 && step[1] == 1)
      for (int64_t i = 0; i < n; ++i) y[at[0] + i] = from[at[1] + i];
    else
      for (int64_t i = 0; i < n; ++i) y[at[0] + i * step[0]] = from[at[1] + i * step[1]];
  });
}
void pad(const op::Pad& op, Bufs in, Bufs out, Context&) {
  visit_size(out[0].dtype(), [&]<class T>() {
    T* y = out[0].raw<T>();
    parallel_for(out[0].numel(), kGrain, [&](int64_t begin, int64_t end) { std::fill(y + begin, y + end, T(0)); });
    copy_into(y + op.start * out[0].strides()[op.dim], out[0].strides(), in[0]);
  });
}
void concat(const op::Concat& op, Bufs in, Bufs out, Context&) {
  visit_size(out[0].dtype(), [&]<class T>() {
    T* y = out[0].raw<T>();
    for (const Buf& x : in) {
      copy_into(y, out[0].strides(), x);
      y += x.size(op.dim) * out[0].strides()[op.dim];
    }
  });
}
TG_STRIDED_KERNEL(op::Pad, cpu, pad);
TG_STRIDED_KERNEL(op::Concat, cpu, concat);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
