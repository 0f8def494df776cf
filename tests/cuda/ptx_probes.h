#pragma once
#include <tapegrad/core/op.h>

namespace tg::cuda {

// Elements of 1, 2, 4 and 8 bytes in vectors of 32, 16, 8 and 4 bytes (not 4 for the last), by store16(), its streaming
// and its shared form.
void probe_stores(const Context&, const uint8_t* from /* (64) */, uint8_t* to /* (4, 3, 64) */);
// 16-byte chunks: even indices are copied, odd ones zeros. Each half of the 64 is a group.
void probe_cp_async(const Context&, const uint32_t* from /* (64, 4) */, uint32_t* to /* (64, 4) */);
// Register m of lane l, of four 8x8 matrices in a column.
void probe_ldmatrix(const Context&, const uint16_t* from /* (32, 8) */, uint32_t* to /* (32, 4) */, bool transposed);
void probe_mma_bf16(const Context&, const bf16* a /* (16, 16) */, const bf16* b /* (8, 16) */, float* d /* (16, 8) */);
void probe_mma_s8(const Context&, const int8_t* a /* (16, 32) */, const int8_t* b /* (8, 32) */, int* d /* (16, 8) */);
void probe_named_barrier(const Context&, const int* from /* (32) */, int* to /* (32) */);
// d (64, 64) += a (64, 64) b (64, 64)^T through TMA, an mbarrier and wgmma. False except on sm_90a.
bool probe_hopper(const Context&, const bf16* a, const bf16* b, float* d);
// int8: d (64, 256) += a (64, 128) b (256, 128)^T, rows `stride` bytes apart.
bool probe_hopper_s8(const Context&, const int8_t* a, const int8_t* b, int64_t stride, int* d);
// y[i] = 1 / x[i], z[i] = h[i] as f32.
void probe_scalars(const Context&, const float* x, float* y, const f16* h, float* z, int64_t n);
// Approximations: y[i] = 1 / x[i], z[i] = 2^x[i].
void probe_approximations(const Context&, const float* x, float* y, float* z, int64_t n);

}  // namespace tg::cuda
