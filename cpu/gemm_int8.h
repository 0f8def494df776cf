// Sums of products of int8 for kernels, exact modulo 2^32.
#pragma once
#include <tapegrad/cpu/gemm.h>

namespace tg::cpu::TG_ISA_NS {

// S (m x n) = A B in int32. store(i, j, n, sums) is called once for each stretch of a row i of S, from column j on,
// from several threads.
void gemm_int8(int64_t m, int64_t n, int64_t k, MatView<int8_t> a, MatView<int8_t> b,
               FunctionRef<void(int64_t i, int64_t j, int64_t n, const int32_t* sums)> store);

}  // namespace tg::cpu::TG_ISA_NS
