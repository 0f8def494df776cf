// Head of every chain kernel's source, with the headers of pointwise functions. NVRTC gets embedded copies; on the
// emulator the host compiler reads the files.
#pragma once
#include <tapegrad/core/half.h>
#include <tapegrad/core/math.h>
#ifndef __CUDACC_RTC__
#include <tapegrad/emulator/language.h>
#endif
#include <tapegrad/cuda/device/grid_loop.h>
#include <tapegrad/cuda/device/vec.h>

namespace tg {
class Vjp;
class Tensor;
class Tensors;
using Mask = uint32_t;
template <class... I> constexpr Mask mask_of(I... i) { return ((Mask(1) << i) | ... | 0u); }
}  // namespace tg

namespace tg::cuda {
namespace {
// Filled word by word in chain.cpp.
template <int kBuffers, int kNumbers> struct Arguments {
  // `groups` of adjacent elements, then single ones.
  int64_t elements, groups, columns;
  uint64_t zero;
  void* data[kBuffers];
  uint64_t numbers[kNumbers > 0 ? kNumbers : 1];
};
template <class T> __device__ __forceinline__ T number(uint64_t bits) {
  if constexpr (sizeof(T) == 8)
    return __builtin_bit_cast(T, bits);
  else if constexpr (sizeof(T) == 4)
    return __builtin_bit_cast(T, uint32_t(bits));
  else if constexpr (sizeof(T) == 2)
    return __builtin_bit_cast(T, uint16_t(bits));
  else
    return __builtin_bit_cast(T, uint8_t(bits));
}

struct Place {
  int64_t row, column;
};
__device__ __forceinline__ Place place_of(int64_t i, int64_t columns) {
  if (uint64_t(i | columns) >> 32 == 0)  // 32-bit divisions are faster
    return {uint32_t(i) / uint32_t(columns), uint32_t(i) % uint32_t(columns)};
  return {i / columns, i % columns};
}

template <class T> __device__ __forceinline__ T element(const void* data, int64_t i) {
  return static_cast<const T*>(data)[i];
}
template <class T, int V> __device__ __forceinline__ Vec<T, V> load(const void* data, int64_t i) {
  return load16<V>(static_cast<const T*>(data) + i);
}
template <class T, int V> __device__ __forceinline__ void store(void* data, int64_t i, const Vec<T, V>& x) {
  store16(static_cast<T*>(data) + i, x);
}

template <class T> __device__ __forceinline__ compute_t<T> widen(T x) { return compute_t<T>(x); }
template <class T> struct Narrowed {
  template <class X> __device__ __forceinline__ static T from(X x) { return T(x); }
};
template <> struct Narrowed<bf16> {
  __device__ __forceinline__ static bf16 from(float x) { return to_bf16(x); }
};

// An op's result that the chain reads. XOR with a zero unknown to the compiler prevents contraction across ops, as
// memory does op by op.
template <class T> __device__ __forceinline__ T settled(T x, uint64_t) { return x; }
__device__ __forceinline__ float settled(float x, uint64_t zero) {
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x) ^ uint32_t(zero));
}
__device__ __forceinline__ double settled(double x, uint64_t zero) {
  return __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, x) ^ zero);
}
}  // namespace
}  // namespace tg::cuda

#ifdef TG_CUDA_EMULATED  // the emulator's entry to the kernel
#define TG_CHAIN_ENTRY(kernel, Args)                                                          \
  extern "C" void kernel##_run(const void* args) { kernel(*static_cast<const Args*>(args)); } \
  extern "C" unsigned long kernel##_bytes() { return sizeof(Args); }
#else
#define TG_CHAIN_ENTRY(kernel, Args)
#endif
