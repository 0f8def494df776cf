// Copies tensors of any layout into parts of contiguous ones, with the widest possible accesses.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <span>

namespace tg::cuda {

// Copies `shape` from x, or zeros if x is null, to y. Strides count elements.
struct Region {
  Shape shape;
  const std::byte* x;
  Strides x_strides;
  std::byte* y;
  Strides y_strides;
};
// One launch per 16 regions, which must not overlap. size: bytes of an element.
void copy_regions(const Context&, size_t size, std::span<const Region>);

}  // namespace tg::cuda
