#include "broken.h"

#include <tapegrad/cuda/device/vec.h>

namespace {

__device__ int linear() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

__global__ void missing_barrier_kernel(const float* x, float* y, bool mistake) {
  __shared__ float s[128];
  const unsigned t = threadIdx.x;
  s[t] = x[t];
  if (!mistake) __syncthreads();
  y[t] = s[127 - t];
}

__global__ void missing_syncwarp_kernel(const float* x, float* y, bool mistake) {
  __shared__ float s[32];
  const unsigned t = threadIdx.x;
  s[t] = x[t];
  for (unsigned d = 16; d > 0; d /= 2) {
    if (!mistake) __syncwarp();
    if (t < d) s[t] += s[t + d];
  }
  if (t == 0) y[0] = s[0];
}

__global__ void bound_kernel(const float* x, float* y, int n, bool mistake) {
  const int i = linear();
  if (i < n + mistake) y[i] = x[i < n ? i : 0];
}

__global__ void missing_copy_wait_kernel(const float* x, float* y, bool mistake) {
  __shared__ __align__(16) float s[512];
  const unsigned t = threadIdx.x;
  tg::cuda::cp_async16(s + 4 * t, x + 4 * t);
  tg::cuda::cp_async_commit();
  if (!mistake) tg::cuda::cp_async_wait<0>();
  __syncthreads();
  y[t] = s[4 * (127 - t)];
}

__global__ void copy_without_barrier_kernel(const float* x, float* y, bool mistake) {
  __shared__ __align__(16) float s[512];
  const unsigned t = threadIdx.x;
  tg::cuda::cp_async16(s + 4 * t, x + 4 * t);
  tg::cuda::cp_async_commit();
  tg::cuda::cp_async_wait<0>();
  if (!mistake) __syncthreads();
  y[t] = s[4 * (127 - t)];
}

// The next copy is issued while others may still read its stage.
__global__ void reused_stage_kernel(const float* x, float* y, bool mistake) {
  __shared__ __align__(16) float s[2][512];
  const unsigned t = threadIdx.x;
  float sum = 0.0F;
  for (unsigned k = 0; k < 4; ++k) {
    tg::cuda::cp_async16(&s[k % 2][4 * t], x + 512 * k + 4 * t);
    tg::cuda::cp_async_commit();
    tg::cuda::cp_async_wait<0>();
    __syncthreads();
    for (unsigned j = 0; j < 4; ++j) sum += s[k % 2][4 * (127 - t) + j];
    if (mistake && k < 3) s[k % 2][4 * t] = 0.0F;
    __syncthreads();
  }
  y[t] = sum;
}

__global__ void divergent_barrier_kernel(float* y, bool mistake) {
  const unsigned t = threadIdx.x;
  if (!mistake || t < 40) __syncthreads();
  y[t] = 1.0F;
}

__global__ void two_barriers_kernel(float* y, bool mistake) {
  const unsigned t = threadIdx.x;
  if (mistake && t < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  if (!mistake || t < 64) y[t] = 1.0F;
}

__global__ void early_return_kernel(float* y, int n, bool mistake) {
  const int t = static_cast<int>(threadIdx.x);
  if (mistake && t >= n) return;
  __syncthreads();
  if (t < n) y[t] = 1.0F;
}

__global__ void unwritten_shared_kernel(const float* x, float* y, bool mistake) {
  float* const s = tg::cuda::dynamic_shared<float>();
  const unsigned t = threadIdx.x;
  if (!mistake || t != 63) s[t] = x[t];
  __syncthreads();
  y[t] = s[63 - t];
}

__global__ void shuffle_mask_kernel(const float* x, float* y, bool mistake) {
  const unsigned t = threadIdx.x;
  float v = x[t];
  if (t < 16) v += __shfl_xor_sync(mistake ? 0xff00ffffU : 0xffffU, v, 1);
  y[t] = v;
}

__global__ void own_lane_kernel(const float* x, float* y, bool mistake) {
  const unsigned t = threadIdx.x;
  y[t] = __shfl_down_sync(mistake ? 0x0fffffffU : 0xffffffffU, x[t], 1);
}

__global__ void divergent_shuffle_kernel(const float* x, float* y, bool mistake) {
  const unsigned t = threadIdx.x;
  if (!mistake || t < 8)
    y[t] = __shfl_sync(0xffffffffU, x[t], 0);
  else
    y[t] = __shfl_sync(0xffffffffU, x[t], 1);
}

__global__ void shuffle_absent_kernel(const float* x, float* y, bool mistake) {
  const unsigned t = threadIdx.x;
  if (t >= 20) return;
  y[t] = __shfl_xor_sync(0xfffffU, x[t], mistake ? 16 : 1);
}

__global__ void misaligned_kernel(const float* x, float* y, bool mistake) {
  const float4 v = *reinterpret_cast<const float4*>(x + (mistake ? 1 : 0));
  y[0] = v.x + v.y + v.z + v.w;
}

__global__ void misaligned_store_kernel(float* y, bool mistake) {
  tg::cuda::store16(y + (mistake ? 2 : 0), tg::cuda::Vec<float>{});
}
__global__ void global_store_kernel(float* y, bool mistake) {
  __shared__ __align__(16) float s[4];
  mistake ? tg::cuda::store16(s, tg::cuda::Vec<float>{}) : tg::cuda::store16_shared(s, tg::cuda::Vec<float>{});
  y[0] = s[0];
}
// Two unordered streams run it.
__global__ void atomic_add_kernel(float* y, bool mistake) { mistake ? void(y[0] += 1.0F) : void(atomicAdd(y, 1.0F)); }
__global__ void shared_store_kernel(float* y, bool mistake) {
  mistake ? tg::cuda::store16_shared(y, tg::cuda::Vec<float>{}) : tg::cuda::store16(y, tg::cuda::Vec<float>{});
}

__global__ void missing_fence_kernel(float* scratch, unsigned* ticket, float* y, bool mistake) {
  if (threadIdx.x != 0) return;
  scratch[blockIdx.x] = static_cast<float>(blockIdx.x);
  if (!mistake) __threadfence();
  if (atomicAdd(ticket, 1U) != gridDim.x - 1) return;
  float sum = 0.0F;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += static_cast<volatile float*>(scratch)[i];
  *y = sum;
}

__global__ void shared_output_kernel(float* y, bool mistake) { y[mistake ? threadIdx.x : linear()] = 1.0F; }

__global__ void in_place_kernel(float* x, bool mistake) {
  const unsigned t = threadIdx.x;
  const float v = x[63 - t];
  if (!mistake) __syncthreads();
  x[t] = v;
}

__global__ void neighbour_kernel(float* x, bool mistake) {
  const float v = x[linear() + (mistake ? 1 : 0)];
  __syncthreads();
  x[linear()] = v;
}

__global__ void static_index_kernel(const float* x, float* y, bool mistake) {
  __shared__ float s[32];
  const unsigned t = threadIdx.x;
  s[t + mistake] = x[t];
  __syncthreads();
  y[t] = mistake ? 0.0F : s[31 - t];
}

__global__ void dynamic_index_kernel(const float* x, float* y, bool mistake) {
  float* const s = tg::cuda::dynamic_shared<float>();
  const unsigned t = threadIdx.x;
  s[t + mistake] = x[t];
  __syncthreads();
  y[t] = mistake ? 0.0F : s[31 - t];
}

__global__ void lonely_named_barrier_kernel(float* y, bool mistake) {
  if (!mistake || threadIdx.x < 32) tg::cuda::named_barrier_sync(1, 64);
  y[threadIdx.x] = 1.0F;
}

// Two threads read, a third writes.
__global__ void two_readers_kernel(const float* x, float* y, bool mistake) {
  __shared__ float s;
  const unsigned t = threadIdx.x;
  if (t == 0) s = x[0];
  __syncthreads();
  y[t] = t == 7 || t == 9 ? s : 0.0F;
  if (!mistake) __syncthreads();
  if (t == 9) s = y[9];
}

__global__ void two_global_readers_kernel(float* y, bool mistake) {
  const unsigned t = threadIdx.x;
  const float v = t == 7 || t == 9 ? y[63] : 0.0F;
  if (!mistake) __syncthreads();
  if (t == 9) y[63] = v + 1.0F;
}

// A thread that arrives without waiting acquires nothing.
__global__ void arrive_kernel(const float* x, float* y, bool mistake) {
  __shared__ float s[64];
  const unsigned t = threadIdx.x;
  s[t] = x[t];
  if (t < 32) {
    tg::cuda::named_barrier_arrive(1, 64);
    y[t] = s[mistake ? t + 32 : t];
  } else {
    tg::cuda::named_barrier_sync(1, 64);
    y[t] = s[t - 32];
  }
}

__global__ void arrive_twice_kernel(float* y, bool mistake) {
  const unsigned t = threadIdx.x;
  if (t < 32) {
    tg::cuda::named_barrier_arrive(2, 64);
    if (mistake) tg::cuda::named_barrier_arrive(2, 64);
  } else if (!mistake) {
    tg::cuda::named_barrier_sync(2, 64);
  }
  y[t] = 1.0F;
}

__global__ void wrong_count_kernel(float* y, bool mistake) {
  const unsigned t = threadIdx.x;
  tg::cuda::named_barrier_sync(3, mistake && t >= 32 ? 96 : 64);
  y[t] = 1.0F;
}

__global__ void unwaited_copy_kernel(const float* x, float* y, bool mistake) {
  __shared__ __align__(16) float s[512];
  const unsigned t = threadIdx.x;
  tg::cuda::cp_async16(s + 4 * t, x + 4 * t);
  tg::cuda::cp_async_commit();
  y[t] = 0.0F;
  if (!mistake) tg::cuda::cp_async_wait<0>();
}

// Two groups in flight; the wait misses the second.
__global__ void one_group_short_kernel(const float* x, float* y, bool mistake) {
  __shared__ __align__(16) float s[2][512];
  const unsigned t = threadIdx.x;
  for (unsigned k = 0; k < 2; ++k) {
    tg::cuda::cp_async16(&s[k][4 * t], x + 512 * k + 4 * t);
    tg::cuda::cp_async_commit();
  }
  if (mistake)
    tg::cuda::cp_async_wait<1>();
  else
    tg::cuda::cp_async_wait<0>();
  __syncthreads();
  y[t] = s[1][4 * (127 - t)];
  tg::cuda::cp_async_wait<0>();
}

__global__ void misaligned_copy_kernel(const float* x, float* y, bool mistake) {
  __shared__ __align__(16) float s[8];
  if (threadIdx.x == 0) tg::cuda::cp_async16(s, x + (mistake ? 1 : 0));
  tg::cuda::cp_async_commit();
  tg::cuda::cp_async_wait<0>();
  if (threadIdx.x == 0) y[0] = s[0];
}

__global__ void locals_of_another_kernel(float* y, bool mistake) {
  __shared__ float* where;
  float mine = static_cast<float>(threadIdx.x);
  if (threadIdx.x == 0) where = &mine;
  __syncthreads();
  y[threadIdx.x] = mistake ? *where : mine;
  __syncthreads();
}

__global__ void many_warp_barriers_kernel(int n) {
  for (int i = 0; i < n; ++i) __syncwarp();
}

__global__ void wide_shared_kernel(float* y) {
  float* const s = tg::cuda::dynamic_shared<float>();
  s[15000] = 1.0F;
  y[0] = s[15000];
}

__global__ void fixed_and_dynamic_shared_kernel(float* y) {
  __shared__ float fixed[32];
  fixed[threadIdx.x] = tg::cuda::dynamic_shared<float>()[threadIdx.x] = 1.0F;
  __syncthreads();
  y[threadIdx.x] = fixed[31 - threadIdx.x];
}

__global__ void many_barriers_kernel(int n) {
  for (int i = 0; i < n; ++i) __syncthreads();
}

__global__ void add_one_kernel(const float* x, float* y, int n) {
  if (linear() < n) y[linear()] = x[linear()] + 1.0F;
}

}  // namespace

namespace broken {

int host_index(int i) {
  static const int some[4] = {1, 2, 3, 5};
  return some[i];
}
#define BROKEN_COPY(name, threads, bytes)                                    \
  cudaError_t name(const float* x, float* y, bool mistake, cudaStream_t s) { \
    return simt::launch(name##_kernel, 1, threads, bytes, s, x, y, mistake); \
  }
#define BROKEN_WRITE(name, blocks, threads)                                \
  cudaError_t name(float* y, bool mistake, cudaStream_t s) {               \
    return simt::launch(name##_kernel, blocks, threads, 0, s, y, mistake); \
  }
BROKEN_COPIES(BROKEN_COPY)
BROKEN_WRITES(BROKEN_WRITE)

cudaError_t bound(const float* x, float* y, int n, bool mistake, cudaStream_t s) {
  return simt::launch(bound_kernel, 2, 64, 0, s, x, y, n, mistake);
}
cudaError_t early_return(float* y, int n, bool mistake, cudaStream_t s) {
  return simt::launch(early_return_kernel, 1, 64, 0, s, y, n, mistake);
}
cudaError_t missing_fence(float* scratch, unsigned* ticket, float* y, bool mistake, cudaStream_t s) {
  return simt::launch(missing_fence_kernel, 4, 32, 0, s, scratch, ticket, y, mistake);
}
cudaError_t add_one(const float* x, float* y, int n, cudaStream_t s) {
  return simt::launch(add_one_kernel, static_cast<unsigned>((n + 63) / 64), 64, 0, s, x, y, n);
}

cudaError_t many_warp_barriers(int n, cudaStream_t s) {
  return simt::launch(many_warp_barriers_kernel, 1, 32, 0, s, n);
}
cudaError_t wide_shared(float* y, bool opt_in, cudaStream_t s) {
  if (opt_in) (void)cudaFuncSetAttribute(wide_shared_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024);
  return simt::launch(wide_shared_kernel, 1, 1, 64 * 1024, s, y);
}
cudaError_t fixed_and_dynamic_shared(float* y, bool mistake, cudaStream_t s) {
  constexpr int bytes = 48 * 1024 - 64;  // static memory has 128 more
  const auto kernel = fixed_and_dynamic_shared_kernel;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, mistake ? 1024 : bytes);
  return simt::launch(kernel, 1, 32, bytes, s, y);
}
int resident(int threads, std::size_t shared_bytes) {
  int blocks = -1;
  (void)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add_one_kernel, threads, shared_bytes);
  return blocks;
}
cudaError_t many_barriers(int n, cudaStream_t s) { return simt::launch(many_barriers_kernel, 1, 256, 0, s, n); }

}  // namespace broken
