// Also for NVRTC, hence no includes.
#pragma once

namespace tg::cuda {

/// Grid-stride loop: for (GridLoop i(n); i; ++i) use *i. 64-bit.
class GridLoop {
 public:
  __device__ __forceinline__ explicit GridLoop(int64_t n)
      : i_(blockIdx.x * int64_t(blockDim.x) + threadIdx.x), n_(n), step_(int64_t(gridDim.x) * blockDim.x) {}
  __device__ __forceinline__ explicit operator bool() const { return i_ < n_; }
  __device__ __forceinline__ int64_t operator*() const { return i_; }
  __device__ __forceinline__ void operator++() { i_ += step_; }

 private:
  int64_t i_, n_, step_;
};

}  // namespace tg::cuda
