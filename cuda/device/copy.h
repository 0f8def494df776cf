// Copies tensors of any layout into parts of contiguous ones, in the widest possible accesses.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <span>

namespace tg::cuda {

// y = x, or zeros if x is null. Strides count elements.
struct Region {
  Shape shape;
  const std::byte* x;
  Strides x_strides;
  std::byte* y;
  Strides y_strides;
};
// One launch per 16 regions without overlap. size: bytes per element.
void copy_regions(const Context&, size_t size, std::span<const Region>);

}  // namespace tg::cuda
