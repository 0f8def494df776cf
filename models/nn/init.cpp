#include <tapegrad/models/nn/init.h>
#include <tapegrad/ops/create.h>

namespace tg {

Tensor Init::make(const Shape& shape, DType dtype, Device device, Rng rng) const {
  return std == 0 ? full(shape, mean, dtype, device) : randn(shape, rng, mean, std, dtype, device);
}

}  // namespace tg
