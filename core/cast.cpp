#include <tapegrad/core/cast.h>

namespace tg {
Layouts op::Cast::infer(Inputs in) const { return {Layout::contiguous(in[0].shape(), to, in[0].device())}; }
Tensors op::Cast::vjp(const Vjp& v) const { return {v.grad().to(v.in_dtype(0))}; }
}  // namespace tg
