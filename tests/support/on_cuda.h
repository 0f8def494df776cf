// Values on the device, and tolerances against the CPU.
#pragma once
#include <algorithm>
#include <cmath>
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/emulator.h>
#endif

#include "support/helpers.h"

namespace tg {

inline const Device kGpu = Device::cuda();
inline Tensor on_cuda(const Tensor& x) { return x.detach().to(kGpu); }
inline std::vector<Tensor> on_cuda(std::vector<Tensor> x) {
  for (Tensor& t : x) t = on_cuda(t);
  return x;
}
inline Tensor make(const Shape& s, uint64_t seed, DType t) { return random<double>(s, seed).to(t); }
#ifdef TG_CUDA_EMULATED
#define CHECK_OFFERED CHECK
#else
#define CHECK_OFFERED WARN  // cuBLASLt may lack algorithms
#endif
// cuBLASLt adds the terms in another order.
inline double tolerance(DType t, [[maybe_unused]] int64_t terms = 1) {
  double f32 = 1e-5;
#ifndef TG_CUDA_EMULATED
  f32 = std::max(f32, 4 * 0x1p-23 * std::sqrt(double(terms)));
#endif
  return t == DType::f64 ? 1e-11 : t == DType::f32 ? f32 : 2e-2;
}

}  // namespace tg
