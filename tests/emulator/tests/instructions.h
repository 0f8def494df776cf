#pragma once
#include <tapegrad/cuda/device/device.h>

namespace instructions {
// y[64 x 64] = sum over tiles t of a[64 x 64] at (row, 64 t) times b[64 x 64]^T at (0, 64 t), by TMA and wgmma; zeros
// outside.
cudaError_t wgmma(const __nv_bfloat16* a, std::uint64_t a_rows, const __nv_bfloat16* b, std::uint64_t b_rows,
                  std::uint64_t columns, int row, float* y, cudaStream_t);
// Shuffles, votes and barriers of a warp or a part: y[9 x 32] of x[32].
cudaError_t lanes(const float* x, float* y, cudaStream_t);
}  // namespace instructions
