// GEMM where cuBLASLt has no algorithm.
#pragma once
#include <tapegrad/cuda/gemm/gemm.h>

namespace tg::cuda {

// gemm() for any shape, alignment and stride; accumulates in f64 for f64, i32 for i8, else f32. ldd: out's row stride.
// Slow compared with cuBLASLt.
void plain_product(const Context&, const Gemm&, int64_t ldd, bool accumulate);
void fill_rows(const Context&, const Gemm&, int64_t ldd);

}  // namespace tg::cuda
