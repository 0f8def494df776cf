// Matrix products of bf16 for kernels: C (m x n, rows of length ldc) = A B, rounded once from sums in f32. On AMX
// tiles, by vdpbf16ps or in f32, as cpu/runtime/bf16_path.h says; operands are packed or widened in blocks, of at most
// some 16 MiB together. Element (i, j) depends on row i of A, column j of B, n and k only, bit for bit, in no way on
// the number of threads; not so on machines of the baseline, where Eigen computes. The ways differ in their last bits,
// as the order of their sums does. AMX and vdpbf16ps take denormal numbers for 0, in operands and in sums.
#pragma once
#include <tapegrad/cpu/gemm/gemm.h>

namespace tg::cpu::TG_ISA_NS {

template <> struct GemmOptions<bf16> {
  // As for other types, before the row is rounded.
  const FunctionRef<void(float* row, int64_t j, int64_t n)>* finish = nullptr;
};
template <>
void gemm(int64_t m, int64_t n, int64_t k, MatView<bf16> a, MatView<bf16> b, bf16* c, int64_t ldc, GemmOptions<bf16>);
template <>
void gemm_serial(int64_t m, int64_t n, int64_t k, MatView<bf16> a, MatView<bf16> b, bf16* c, int64_t ldc,
                 GemmOptions<bf16>);

}  // namespace tg::cpu::TG_ISA_NS
