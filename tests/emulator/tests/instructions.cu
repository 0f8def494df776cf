#include "instructions.h"

#include <tapegrad/cuda/device/hopper.h>

namespace {
using namespace tg::cuda;
using bf16 = __nv_bfloat16;

__global__ void __launch_bounds__(128)
    wgmma_kernel(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, int row, float* y) {
  __shared__ mbarrier full;
  char* const s = dynamic_shared<char>();
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  float d[32] = {};
  for (int k = 0; k < 2; ++k) {
    if (t == 0) {
      mbarrier_arrive_expect(&full, 16384);
      tma_load(s, &a, row, k * 64, &full);
      tma_load(s + 8192, &b, 0, k * 64, &full);
    }
    mbarrier_wait(&full, k);
    const std::uint64_t oa = wgmma_operand(s), ob = wgmma_operand(s + 8192);
    wgmma_fence();
    for (unsigned i = 0; i < 4; ++i) wgmma_m64n64k16(d, oa + 2 * i, ob + 2 * i);
    wgmma_commit();
    wgmma_wait(d);
    __syncthreads();
  }
  for (int i = 0; i < 32; ++i)
    y[(t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8) * 64 + i / 4 * 8 + t % 4 * 2 + i % 2] = d[i];
}

__global__ void lanes_kernel(const float* x, float* y) {
  const unsigned t = threadIdx.x;
  const float v = x[t];
  float* const to = y + t;
  to[0] = __shfl_sync(~0U, v, 5);
  to[32] = __shfl_sync(~0U, v, 3, 8);
  to[64] = __shfl_xor_sync(~0U, v, 17);
  to[96] = __shfl_down_sync(~0U, v, 2, 16);
  to[128] = __shfl_up_sync(~0U, v, 3);
  to[160] = static_cast<float>(__popc(__ballot_sync(~0U, v > 0.0F)));
  to[192] = static_cast<float>(__any_sync(~0U, v > 2.0F) + 2 * __all_sync(~0U, v < 2.0F));
  const unsigned half = t < 16 ? 0xffffU : 0xffff0000U;  // each half separately
  to[224] = __shfl_xor_sync(half, v, 8);
  to[256] = t % 2 == 0 ? __shfl_sync(0x55555555U, v, 30) : __shfl_sync(0xaaaaaaaaU, v, 1);
}

}  // namespace

namespace instructions {
cudaError_t wgmma(const bf16* a, std::uint64_t a_rows, const bf16* b, std::uint64_t b_rows, std::uint64_t columns,
                  int row, float* y, cudaStream_t s) {
  TensorMap ma, mb;
  cudaError_t e = make_tensor_map(&ma, a, a_rows, columns, 64, 64);
  if (e == cudaSuccess) e = make_tensor_map(&mb, b, b_rows, columns, 64, 64);
  return e == cudaSuccess ? simt::launch(wgmma_kernel, 1, 128, 16384, s, ma, mb, row, y) : e;
}
cudaError_t lanes(const float* x, float* y, cudaStream_t s) { return simt::launch(lanes_kernel, 1, 32, 0, s, x, y); }
}  // namespace instructions
