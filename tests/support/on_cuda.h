// Values on the device, and tolerances against the CPU.
#pragma once
#include "support/helpers.h"

namespace tg {

inline const Device kGpu = Device::cuda();
inline Tensor on_cuda(const Tensor& x) { return x.detach().to(kGpu); }
inline std::vector<Tensor> on_cuda(std::vector<Tensor> x) {
  for (Tensor& t : x) t = on_cuda(t);
  return x;
}
inline Tensor make(const Shape& s, uint64_t seed, DType t) { return random<double>(s, seed).to(t); }
inline double tolerance(DType t) { return t == DType::f64 ? 1e-11 : t == DType::f32 ? 1e-5 : 2e-2; }

}  // namespace tg
