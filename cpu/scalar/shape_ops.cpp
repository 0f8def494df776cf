// Copies depend on the element size alone.
#include <tapegrad/cpu/simd/loop.h>
#include <tapegrad/ops/shape_ops.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
void pad(const op::Pad& op, Bufs in, Bufs out, Context&) {
  kernel::visit_size(out[0].dtype(), [&]<class T>() {
    T* y = out[0].raw<T>();
    parallel_for(out[0].numel(), kGrain, [&](int64_t begin, int64_t end) { std::fill(y + begin, y + end, T(0)); });
    copy_elements(in[0], y + op.start * out[0].strides()[op.dim], out[0].strides());
  });
}
void concat(const op::Concat& op, Bufs in, Bufs out, Context&) {
  kernel::visit_size(out[0].dtype(), [&]<class T>() {
    T* y = out[0].raw<T>();
    for (const Buf& x : in) {
      copy_elements(x, y, out[0].strides());
      y += x.size(op.dim) * out[0].strides()[op.dim];
    }
  });
}
TG_STRIDED_KERNEL(op::Pad, cpu, pad);
TG_STRIDED_KERNEL(op::Concat, cpu, concat);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
