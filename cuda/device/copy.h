// Copies any layout into parts of contiguous tensors, in the widest accesses.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <span>

namespace tg::cuda {

// y = x, or zeros for null x. Strides in elements.
struct Region {
  Shape shape;
  const std::byte* x;
  Strides x_strides;
  std::byte* y;
  Strides y_strides;
};
// One launch per 16 regions, which must not overlap.
void copy_regions(const Context&, size_t size, std::span<const Region>);

}  // namespace tg::cuda
