// C (m x n, rows ldc apart) = A B, f32 sums rounded once. The paths (cpu/runtime/product_path.h) differ in last bits.
// Packed blocks take about 16 MiB at most. Except with Eigen, element (i, j) depends bit for bit on row i of A, column
// j of B, n and k alone. AMX and vdpbf16ps treat denormals as 0.
#pragma once
#include <tapegrad/cpu/gemm/gemm.h>

namespace tg::cpu::TG_ISA_NS {

template <> struct GemmOptions<bf16> {
  // Called on f32 sums, before rounding.
  const FunctionRef<void(float* row, int64_t j, int64_t n)>* finish = nullptr;
  // If set, the sums go here, rows ldc apart, and not rounded to C.
  float* unrounded = nullptr;
};
template <>
void gemm(int64_t m, int64_t n, int64_t k, MatView<bf16> a, MatView<bf16> b, bf16* c, int64_t ldc, GemmOptions<bf16>);
template <>
void gemm_serial(int64_t m, int64_t n, int64_t k, MatView<bf16> a, MatView<bf16> b, bf16* c, int64_t ldc,
                 GemmOptions<bf16>);

}  // namespace tg::cpu::TG_ISA_NS
