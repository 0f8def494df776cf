// Products by a kernel of our own, for those that cuBLASLt has no algorithm for. For gemm.cpp.
#pragma once
#include <tapegrad/cuda/gemm/gemm.h>

namespace tg::cuda {

// What gemm() computes, of any shape, alignment and step, in sums of f64 for f64, i32 for i8, else f32 (tf32 as well).
// Rows of out are ldd elements apart; `accumulate` adds to what it holds. Slow beside the library.
void plain_product(const Context&, const Gemm&, int64_t ldd, bool accumulate);
// out = the bias in each row, for a product that adds to it.
void fill_rows(const Context&, const Gemm&, int64_t ldd);

}  // namespace tg::cuda
