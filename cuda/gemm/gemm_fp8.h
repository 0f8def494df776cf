// fp8 GEMMs by cuBLASLt for compute capability 9.0; fp8.cu has a fallback.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/ops/quantized/fp8.h>

namespace tg::cuda {

// out (m, n) = x (m, k) weight (n, k)^T, (i, j) scaled by scale_x[i] scale_weight[j], rounded once. Contiguous, 16-byte
// aligned device memory.
struct GemmFp8 {
  int64_t m = 0, n = 0, k = 0;
  Fp8Format of_x, of_weight;  // not both e5m2
  const void *x = nullptr, *weight = nullptr;
  const float *scale_x = nullptr, *scale_weight = nullptr;
  DType dtype = DType::f32;
  void* out = nullptr;
};
// n, k multiples of 16, m of 4, on compute capability 9.0. cuBLASLt may still refuse.
bool fp8_shape_fits(const Context&, int64_t m, int64_t n, int64_t k);
// False if cuBLASLt refuses. Tensor cores of 9.0 accumulate about 14 bits, added in f32 every few terms (DeepSeek-V3
// technical report, arXiv:2412.19437, 3.5.2).
bool gemm_fp8(const Context&, const GemmFp8&);
// Refusals in this process; stderr names the first.
uint64_t fp8_refusals();

}  // namespace tg::cuda
