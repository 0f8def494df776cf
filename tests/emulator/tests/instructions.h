// Kernels around single instructions of ptx.h and hopper.h.
#pragma once
#include <tapegrad/cuda/device/device.h>

namespace instructions {
// y[64 x 64] = sum over two tiles t of a[64 x 64] at (row, 64 t) times b[64 x 64]^T at (0, 64 t), by TMA and wgmma.
// Elements outside are zero.
cudaError_t wgmma(const __nv_bfloat16* a, std::uint64_t a_rows, const __nv_bfloat16* b, std::uint64_t b_rows,
                  std::uint64_t columns, int row, float* y, cudaStream_t);
// Every shuffle, vote and barrier of a warp or a part of it: y[9 x 32] = results per lane for x[32].
cudaError_t lanes(const float* x, float* y, cudaStream_t);
}  // namespace instructions
