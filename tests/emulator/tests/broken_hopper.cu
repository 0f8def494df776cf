#include <tapegrad/cuda/device/hopper.h>

#include "broken.h"

namespace {

using broken::Hopper;

// Thread 0 loads two halves of x through one stage; the second warpgroup multiplies each by the identity.
__global__ void __launch_bounds__(256, 1)
    hopper_kernel(const __grid_constant__ tg::cuda::TensorMap x, const __grid_constant__ tg::cuda::TensorMap identity,
                  float* y, Hopper mistake) {
  __shared__ tg::cuda::mbarrier full, empty;
  char* const shared = tg::cuda::dynamic_shared<char>();
  const int t = static_cast<int>(threadIdx.x) % 128;
  if (threadIdx.x == 0) {
    tg::cuda::mbarrier_init(&full, 1);
    tg::cuda::mbarrier_init(&empty, 1);
    if (mistake != Hopper::no_init_fence) tg::cuda::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    for (int half = 0; t == 0 && half < 2; ++half) {
      if (mistake != Hopper::no_empty_wait) tg::cuda::mbarrier_wait(&empty, (half + 1) % 2);
      tg::cuda::mbarrier_arrive_expect(&full, mistake == Hopper::few_bytes ? 8192 : 16384);
      tg::cuda::tma_load(shared, &x, half * 64, 0, &full);
      tg::cuda::tma_load(shared + 8192, &identity, 0, 0, &full);
    }
    return;
  }
  for (int half = 0; half < 2; ++half) {
    float d[32] = {};
    if (mistake != Hopper::no_full_wait) tg::cuda::mbarrier_wait(&full, half);
    const std::uint64_t a = tg::cuda::wgmma_operand(shared), b = tg::cuda::wgmma_operand(shared + 8192);
    tg::cuda::wgmma_fence();
    for (unsigned i = 0; i < 4; ++i) tg::cuda::wgmma_m64n64k16(d, a + 2 * i, b + 2 * i);
    tg::cuda::wgmma_commit();
    if (mistake == Hopper::early_release && t == 0) tg::cuda::mbarrier_arrive(&empty);
    float others[32] = {};
    if (mistake != Hopper::no_product_wait) tg::cuda::wgmma_wait(mistake == Hopper::other_registers ? others : d);
    if (mistake != Hopper::early_release && mistake != Hopper::no_arrive && t == 0) tg::cuda::mbarrier_arrive(&empty);
    for (int i = 0; i < 32; ++i)
      y[(half * 64 + t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8) * 64 + i / 4 * 8 + t % 4 * 2 + i % 2] = d[i];
  }
}

__global__ void __launch_bounds__(128, 1) stored_operand_kernel(float* y, bool mistake) {
  __nv_bfloat16* const s = tg::cuda::dynamic_shared<__nv_bfloat16>();
  const unsigned t = threadIdx.x;
  for (unsigned i = t; i < 64 * 64; i += 128)  // chunks of 16 bytes are swizzled per 128
    s[i ^ (i / 64 % 8) * 8] = __float2bfloat16(i % 65 == 0 ? 1.0F : 0.0F);
  if (!mistake) tg::cuda::async_fence();
  __syncthreads();
  float d[32] = {};
  const std::uint64_t operand = tg::cuda::wgmma_operand(s);
  tg::cuda::wgmma_fence();
  for (unsigned i = 0; i < 4; ++i) tg::cuda::wgmma_m64n64k16(d, operand + 2 * i, operand + 2 * i);
  tg::cuda::wgmma_commit();
  tg::cuda::wgmma_wait(d);
  for (unsigned i = 0; i < 32; ++i)
    y[(t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8) * 64 + i / 4 * 8 + t % 4 * 2 + i % 2] = d[i];
}

}  // namespace

cudaError_t broken::stored_operand(float* y, bool mistake, cudaStream_t s) {
  return simt::launch(stored_operand_kernel, 1, 128, 8192, s, y, mistake);
}

cudaError_t broken::hopper(const __nv_bfloat16* x, const __nv_bfloat16* identity, float* y, Hopper mistake,
                           cudaStream_t s) {
  tg::cuda::TensorMap mx, mi;
  cudaError_t e = tg::cuda::make_tensor_map(&mx, x, 128, 64, 64, 64);
  if (e == cudaSuccess) e = tg::cuda::make_tensor_map(&mi, identity, 64, 64, 64, 64);
  if (e != cudaSuccess) return e;
  return simt::launch(hopper_kernel, 1, 256, 16384, s, mx, mi, y, mistake);
}
