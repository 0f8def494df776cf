// S (m x n) = A B in int32, exact modulo 2^32, by a path of product_path.h.
#pragma once
#include <tapegrad/cpu/gemm/gemm_types.h>
#include <tapegrad/cpu/simd/function_ref.h>

namespace tg::cpu::TG_ISA_NS {

// Threads call store(i, j, n, sums) once per segment of row i of S, from column j on, while it is in cache.
void gemm_int8(int64_t m, int64_t n, int64_t k, MatView<int8_t> a, MatView<int8_t> b,
               FunctionRef<void(int64_t i, int64_t j, int64_t n, const int32_t* sums)> store);

}  // namespace tg::cpu::TG_ISA_NS
