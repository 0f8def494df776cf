// Device functions for kernels: conversion to and from the type that is computed in, and sums, maxima
// over a warp and a block in a fixed order (the same bits on every run). Everything is __forceinline__.
#pragma once
#include <tapegrad/core/dtype.h>
#include <tapegrad/core/math.h>
#include <tapegrad/cuda/device/ptx.h>

namespace tg::cuda {

inline bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

/// To the type that is computed in, and back rounded to nearest even: widen(x), narrow<T>(y).
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

/// e^x of an x, or for a result, in T. For bf16 by the approximate instruction: relative error below 2^-16 where e^x is
/// between 2^-125 and 2^125, 1/128 of half a unit of bf16; a smaller one may be 0.
template <class T> __device__ __forceinline__ compute_t<T> exp_for(compute_t<T> x) {
  if constexpr (std::is_same_v<T, bf16>)
    return exp2_approx(x * 1.44269504f);
  else
    return math::exp(x);
}
/// 1 / (1 + e^-x) for a result in T. For bf16 likewise: relative error below 2^-16 from x = -87 up; below, where the
/// result is less than 2^-125, it may be 0.
template <class T> __device__ __forceinline__ compute_t<T> sigmoid_for(compute_t<T> x) {
  if constexpr (std::is_same_v<T, bf16>)
    return reciprocal_approx(1.0f + exp_for<bf16>(-x));
  else
    return math::sigmoid(x);
}

/// a + b, for warp_all() and block_all().
struct SumOp {
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
/// The larger of a and b; NaN wins.
struct MaxOp {
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a > b || a != a ? a : b; }
};

/// Op over the values of a warp: the same result in all 32 lanes.
template <class Op, class T> __device__ __forceinline__ T warp_all(T v, Op op = {}) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = op(v, __shfl_xor_sync(~0u, v, d));
  return v;
}
/// Op over the values of a block of kThreads (a multiple of 32): the same result in all of them. All threads call it,
/// at the same line.
template <class Op, int kThreads, class T> __device__ __forceinline__ T block_all(T v, T identity, Op op = {}) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  v = warp_all<Op>(v, op);
  if constexpr (kThreads > 32) {
    __shared__ T part[kThreads / 32];
    __syncthreads();  // the last use of part is over
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = identity;
    for (int w = 0; w < kThreads / 32; ++w) v = op(v, part[w]);
  }
  return v;
}

}  // namespace tg::cuda
