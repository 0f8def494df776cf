// A kernel for GEMMs that cuBLASLt has no algorithm for.
#pragma once
#include <tapegrad/cuda/gemm/gemm.h>

namespace tg::cuda {

// gemm() for any shape, alignment and stride, accumulating in f64 for f64, i32 for i8, else f32. ldd is out's row
// stride; `accumulate` adds to out. Slow compared with the library.
void plain_product(const Context&, const Gemm&, int64_t ldd, bool accumulate);
// out = the bias in each row.
void fill_rows(const Context&, const Gemm&, int64_t ldd);

}  // namespace tg::cuda
