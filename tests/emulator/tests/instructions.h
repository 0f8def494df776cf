// Kernels around single instructions of ptx.h and hopper.h.
#pragma once
#include <tapegrad/cuda/device/device.h>

namespace instructions {
// d[16 x 8] = a[16 x 16] b[8 x 16]^T + c, of bf16; `transposed`: b is [16 x 8], loaded by ldmatrix_x4_trans.
cudaError_t mma_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, const float* c, float* d, bool transposed,
                     cudaStream_t);
// d[16 x 8] = a[16 x 32] b[8 x 32]^T + c, of int8.
cudaError_t mma_s8(const std::int8_t* a, const std::int8_t* b, const int* c, int* d, cudaStream_t);
// y[64 x 64] = sum over two tiles t of a[64 x 64] at (row, 64 t) times b[64 x 64] at (0, 64 t) transposed, by TMA and
// wgmma. Elements outside are zero.
cudaError_t wgmma(const __nv_bfloat16* a, std::uint64_t a_rows, const __nv_bfloat16* b, std::uint64_t b_rows,
                  std::uint64_t columns, int row, float* y, cudaStream_t);
// y[i] = x[i] for i < n, else 0, through cp.async; 128 vectors of 4.
cudaError_t cp_async(const float* x, float* y, int n, cudaStream_t);
// Every shuffle, vote and barrier of a warp or a part of it: y[9 x 32] = results per lane for x[32].
cudaError_t lanes(const float* x, float* y, cudaStream_t);
}  // namespace instructions
