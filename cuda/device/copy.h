// Copies of regions: tensors of any layout into parts of contiguous ones, in the widest accesses that they allow. For
// cast.cu and shape_ops.cu; kernels that want an operand contiguous use Dense of kernel.h.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <span>

namespace tg::cuda {

// Elements of `shape` from x, or zeros where x is null, to y; strides count elements.
struct Region {
  Shape shape;
  const std::byte* x;
  Strides x_strides;
  std::byte* y;
  Strides y_strides;
};
// One launch per 16 regions; they must not overlap. `size`: bytes of an element.
void copy_regions(const Context&, size_t size, std::span<const Region>);

}  // namespace tg::cuda
