#include "cuda/ptx_probes.h"

#include <tapegrad/cuda/device/hopper.h>
#include <tapegrad/cuda/device/kernel.h>

namespace tg::cuda {
namespace {

__global__ void cp_async_kernel(const uint32_t* from, uint32_t* to) {  // 32 threads
  __shared__ __align__(16) uint32_t shared[64 * 4];
  const int t = int(threadIdx.x);
  cp_async16(shared + t * 4, from + t * 4, t % 2 == 0);
  cp_async_commit();
  cp_async16(shared + (t + 32) * 4, from + (t + 32) * 4, t % 2 == 0);
  cp_async_commit();
  cp_async_wait<1>();
  for (int k = 0; k < 4; ++k) to[t * 4 + k] = shared[t * 4 + k];
  cp_async_wait<0>();
  for (int k = 0; k < 4; ++k) to[(t + 32) * 4 + k] = shared[(t + 32) * 4 + k];
}

__global__ void ldmatrix_kernel(const uint16_t* from, uint32_t* to, bool transposed) {  // one warp
  __shared__ __align__(16) uint16_t shared[32 * 8];
  const int l = int(threadIdx.x);
  for (int k = 0; k < 8; ++k) shared[l * 8 + k] = from[l * 8 + k];
  __syncthreads();
  uint32_t r[4];
  if (transposed)
    ldmatrix_x4_trans(r, shared + l * 8);
  else
    ldmatrix_x4(r, shared + l * 8);
  for (int k = 0; k < 4; ++k) to[l * 4 + k] = r[k];
}

__device__ __forceinline__ uint32_t pair(const bf16* p) { return uint32_t(p[0].bits) | uint32_t(p[1].bits) << 16; }
__global__ void mma_bf16_kernel(const bf16* a, const bf16* b, float* d) {  // one warp
  const int g = int(threadIdx.x) / 4, t = int(threadIdx.x) % 4 * 2;
  const uint32_t ra[4] = {pair(a + g * 16 + t), pair(a + (g + 8) * 16 + t), pair(a + g * 16 + t + 8),
                          pair(a + (g + 8) * 16 + t + 8)};
  float rd[4];
  for (int i = 0; i < 4; ++i) rd[i] = d[(g + i / 2 * 8) * 8 + t + i % 2];
  mma_bf16(rd, ra, pair(b + g * 16 + t), pair(b + g * 16 + t + 8));
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + t + i % 2] = rd[i];
}

__device__ __forceinline__ uint32_t four(const int8_t* p) {
  return uint32_t(uint8_t(p[0])) | uint32_t(uint8_t(p[1])) << 8 | uint32_t(uint8_t(p[2])) << 16 |
         uint32_t(uint8_t(p[3])) << 24;
}
__global__ void mma_s8_kernel(const int8_t* a, const int8_t* b, int* d) {  // one warp
  const int g = int(threadIdx.x) / 4, t = int(threadIdx.x) % 4, k = t * 4;
  const uint32_t ra[4] = {four(a + g * 32 + k), four(a + (g + 8) * 32 + k), four(a + g * 32 + k + 16),
                          four(a + (g + 8) * 32 + k + 16)};
  int rd[4];
  for (int i = 0; i < 4; ++i) rd[i] = d[(g + i / 2 * 8) * 8 + t * 2 + i % 2];
  mma_s8(rd, ra, four(b + g * 32 + k), four(b + g * 32 + k + 16));
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = rd[i];
}

__global__ void named_barrier_kernel(const int* from, int* to) {  // two warps
  __shared__ int shared[32];
  const int t = int(threadIdx.x);
  if (t < 32) {
    shared[t] = from[t];
    named_barrier_arrive(1, 64);
  } else {
    named_barrier_sync(1, 64);
    to[t - 32] = shared[63 - t];
  }
}

// Thread 0 of a warpgroup loads both operands by TMA; four products of k = 16.
__global__ void __launch_bounds__(128)
    hopper_kernel(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, float* d) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  unsigned char* shared = dynamic_shared<unsigned char>();
  unsigned char *a = shared, *b = shared + 64 * 128;
  mbarrier* ready = reinterpret_cast<mbarrier*>(shared + 2 * 64 * 128);
  if (threadIdx.x == 0) {
    mbarrier_init(ready, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(ready, 2 * 64 * 128);
    tma_load(a, &map_a, 0, 0, ready);
    tma_load(b, &map_b, 0, 0, ready);
  }
  mbarrier_wait(ready, 0);
  const int t = int(threadIdx.x), row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  float r[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) r[i] = d[(row + i / 2 % 2 * 8) * 64 + column + i / 4 * 8 + i % 2];
  const uint64_t oa = wgmma_operand(a), ob = wgmma_operand(b);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_m64n64k16(r, oa + uint64_t(2 * k), ob + uint64_t(2 * k));
  wgmma_commit();
  wgmma_wait(r);
#pragma unroll
  for (int i = 0; i < 32; ++i) d[(row + i / 2 % 2 * 8) * 64 + column + i / 4 * 8 + i % 2] = r[i];
#endif
}

__global__ void __launch_bounds__(128)
    hopper_s8_kernel(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int* d) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  unsigned char* shared = dynamic_shared<unsigned char>();
  unsigned char *a = shared, *b = shared + 64 * 128;
  __shared__ mbarrier ready;
  if (threadIdx.x == 0) {
    mbarrier_init(&ready, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&ready, 320 * 128);
    tma_load(a, &map_a, 0, 0, &ready);
    tma_load(b, &map_b, 0, 0, &ready);
  }
  mbarrier_wait(&ready, 0);
  const int t = int(threadIdx.x), row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  int r[32][4];
#pragma unroll
  for (int i = 0; i < 128; ++i) r[i / 4][i % 4] = d[(row + i / 2 % 2 * 8) * 256 + column + i / 4 * 8 + i % 2];
  const uint64_t oa = wgmma_operand(a), ob = wgmma_operand(b);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_m64n256k32(r, oa + uint64_t(2 * k), ob + uint64_t(2 * k));
  wgmma_commit();
  wgmma_wait(r);
#pragma unroll
  for (int i = 0; i < 128; ++i) d[(row + i / 2 % 2 * 8) * 256 + column + i / 4 * 8 + i % 2] = r[i / 4][i % 4];
#endif
}
__global__ void scalars_kernel(const float* x, float* y, const f16* h, float* z, int64_t n) {
  for (GridLoop i(n); i; ++i) y[*i] = reciprocal(x[*i]), z[*i] = to_float(h[*i]);
}
__global__ void approximations_kernel(const float* x, float* y, float* z, int64_t n) {
  for (GridLoop i(n); i; ++i) y[*i] = reciprocal_approx(x[*i]), z[*i] = exp2_approx(x[*i]);
}
template <class T> __device__ void store_all(const uint8_t* from, uint8_t* to, uint8_t* shared) {
  const auto part = [&]<int kBytes>(std::integral_constant<int, kBytes>, int at) {
    const auto x = load16<kBytes / int(sizeof(T))>(reinterpret_cast<const T*>(from + at));
    store16(reinterpret_cast<T*>(to + at), x);
    store16_streaming(reinterpret_cast<T*>(to + 64 + at), x);
    store16_shared(reinterpret_cast<T*>(shared + at), x);
    for (int k = 0; k < kBytes; ++k) to[128 + at + k] = shared[at + k];
  };
  part(std::integral_constant<int, 32>(), 0);
  part(std::integral_constant<int, 16>(), 32);
  part(std::integral_constant<int, 8>(), 48);
  if constexpr (sizeof(T) <= 4) part(std::integral_constant<int, 4>(), 56);
}
__global__ void stores_kernel(const uint8_t* from, uint8_t* to) {  // one thread
  __shared__ __align__(16) uint8_t shared[64];
  store_all<uint8_t>(from, to, shared);
  store_all<uint16_t>(from, to + 192, shared);
  store_all<uint32_t>(from, to + 384, shared);
  store_all<uint64_t>(from, to + 576, shared);
}

}  // namespace

void probe_stores(const Context& c, const uint8_t* from, uint8_t* to) { launch(c, stores_kernel, 1, 1, 0, from, to); }
void probe_cp_async(const Context& c, const uint32_t* from, uint32_t* to) {
  launch(c, cp_async_kernel, 1, 32, 0, from, to);
}
void probe_ldmatrix(const Context& c, const uint16_t* from, uint32_t* to, bool transposed) {
  launch(c, ldmatrix_kernel, 1, 32, 0, from, to, transposed);
}
void probe_mma_bf16(const Context& c, const bf16* a, const bf16* b, float* d) {
  launch(c, mma_bf16_kernel, 1, 32, 0, a, b, d);
}
void probe_mma_s8(const Context& c, const int8_t* a, const int8_t* b, int* d) {
  launch(c, mma_s8_kernel, 1, 32, 0, a, b, d);
}
void probe_named_barrier(const Context& c, const int* from, int* to) {
  launch(c, named_barrier_kernel, 1, 64, 0, from, to);
}
bool probe_hopper(const Context& c, const bf16* a, const bf16* b, float* d) {
  if (properties(c.device.index).major != 9) return false;
  TensorMap map_a, map_b;
  check(make_tensor_map(&map_a, reinterpret_cast<const __nv_bfloat16*>(a), 64, 64, 64, 64), c.op, "a tensor map");
  check(make_tensor_map(&map_b, reinterpret_cast<const __nv_bfloat16*>(b), 64, 64, 64, 64), c.op, "a tensor map");
  launch(c, hopper_kernel, 1, 128, 2 * 64 * 128 + 64, map_a, map_b, d);
  return true;
}

bool probe_hopper_s8(const Context& c, const int8_t* a, const int8_t* b, int64_t stride, int* d) {
  if (properties(c.device.index).major != 9) return false;
  TensorMap map_a, map_b;
  check(make_tensor_map(&map_a, a, 64, 128, uint64_t(stride), 64), c.op, "a tensor map");
  check(make_tensor_map(&map_b, b, 256, 128, uint64_t(stride), 256), c.op, "a tensor map");
  launch(c, hopper_s8_kernel, 1, 128, 320 * 128, map_a, map_b, d);
  return true;
}
void probe_scalars(const Context& c, const float* x, float* y, const f16* h, float* z, int64_t n) {
  launch(c, scalars_kernel, blocks_for(c, n, 256), 256, 0, x, y, h, z, n);
}
void probe_approximations(const Context& c, const float* x, float* y, float* z, int64_t n) {
  launch(c, approximations_kernel, blocks_for(c, n, 256), 256, 0, x, y, z, n);
}

}  // namespace tg::cuda
