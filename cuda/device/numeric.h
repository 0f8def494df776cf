// A fixed order of sums and maxima: equal bits on every run.
#pragma once
#include <tapegrad/core/dtype.h>
#include <tapegrad/core/math.h>
#include <tapegrad/cuda/device/ptx.h>

namespace tg::cuda {

inline bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

/// widen(x): compute type; narrow<T>(y): rounds to nearest even.
__device__ __forceinline__ float widen(bf16 x) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(uint32_t(x.bits) << 16);
#else
  return float(x);
#endif
}
__device__ __forceinline__ float widen(f16 x) { return float(x); }
template <class T> __device__ __forceinline__ T widen(T x) { return x; }
template <class T> __device__ __forceinline__ T narrow(compute_t<T> x) {
  if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(x);
  else
    return T(x);
}

/// e^x with T's accuracy. bf16: relative error < 2^-16 for e^x in [2^-125, 2^125]; smaller results may be 0.
template <class T> __device__ __forceinline__ compute_t<T> exp_for(compute_t<T> x) {
  if constexpr (std::is_same_v<T, bf16>)
    return exp2_approx(x * 1.44269504f);
  else
    return math::exp(x);
}
/// 1 / (1 + e^-x) with T's accuracy. bf16: relative error < 2^-16 for x >= -87; below, results under 2^-125 may be 0.
template <class T> __device__ __forceinline__ compute_t<T> sigmoid_for(compute_t<T> x) {
  if constexpr (std::is_same_v<T, bf16>)
    return reciprocal_approx(1.0f + exp_for<bf16>(-x));
  else
    return math::sigmoid(x);
}

struct SumOp {
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
/// Larger of a and b; NaN wins.
struct MaxOp {
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a > b || a != a ? a : b; }
};

/// Running sum with an error independent of the number of terms: compensated summation of Kahan (1965). A total that
/// overflows stays infinite; with kBounded, which promises that none does, it is NaN.
template <class C, bool kBounded = false> class KahanSum {
 public:
  __device__ __forceinline__ void add(C x) {
    const C y = x - excess_, next = total_ + y, excess = (next - total_) - y;
    excess_ = kBounded || excess - excess == C(0) ? excess : C(0);
    total_ = next;
  }
  __device__ __forceinline__ void scale(C factor) { total_ *= factor, excess_ *= factor; }
  __device__ __forceinline__ C total() const { return total_; }

 private:
  C total_ = 0, excess_ = 0;
};

/// Warp reduction; all 32 lanes get the result.
template <class Op, class T> __device__ __forceinline__ T warp_all(T v, Op op = {}) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = op(v, __shfl_xor_sync(~0u, v, d));
  return v;
}
/// Block reduction for kThreads threads (a multiple of 32); all call it at one line and get the result.
template <class Op, int kThreads, class T> __device__ __forceinline__ T block_all(T v, T identity, Op op = {}) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  v = warp_all<Op>(v, op);
  if constexpr (kThreads > 32) {
    __shared__ T part[kThreads / 32];
    __syncthreads();  // part is read
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = identity;
    for (int w = 0; w < kThreads / 32; ++w) v = op(v, part[w]);
  }
  return v;
}

}  // namespace tg::cuda
