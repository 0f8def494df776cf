// Adjacent elements moved by one 16-byte instruction. Only these functions store them: nvcc may split struct
// assignments, which the test cuda_whole_vectors refuses.
#pragma once
#include <tapegrad/cuda/device/ptx.h>

namespace tg::cuda {

/// N adjacent elements.
template <class T, int N = int(16 / sizeof(T))> struct alignas(sizeof(T) * N) Vec {
  T x[N];
};
/// Elements of T in 16 bytes.
template <class T> inline constexpr int kVec = int(16 / sizeof(T));

/// p is aligned to 16 bytes, or to N elements if fewer.
template <int N, class T> __device__ __forceinline__ Vec<T, N> load16(const T* p) {
  if constexpr (N <= kVec<T>) {
    return *reinterpret_cast<const Vec<T, N>*>(p);
  } else {
    Vec<T, N> x;
#pragma unroll
    for (int i = 0; i < N; i += kVec<T>) {
      const auto part = *reinterpret_cast<const Vec<T>*>(p + i);
#pragma unroll
      for (int k = 0; k < kVec<T>; ++k) x.x[i + k] = part.x[k];
    }
    return x;
  }
}
template <class T> __device__ __forceinline__ Vec<T> load16(const T* p) { return load16<kVec<T>>(p); }

/// Calls f(q, part) for each 16-byte part of x, with address q.
template <class T, int N, class F> __device__ __forceinline__ void each_part(T* p, const Vec<T, N>& x, F&& f) {
  if constexpr (N <= kVec<T>) {
    f(reinterpret_cast<Vec<T, N>*>(p), x);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += kVec<T>) {
      Vec<T> part;
#pragma unroll
      for (int k = 0; k < kVec<T>; ++k) part.x[k] = x.x[i + k];
      f(reinterpret_cast<Vec<T>*>(p + i), part);
    }
  }
}
/// p[0 .. N) = x in global memory, aligned as for load16().
template <class T, int N> __device__ __forceinline__ void store16(T* p, const Vec<T, N>& x) {
  each_part(p, x, [](auto* to, const auto& part) { store_global(to, part); });
}
/// store16() of data not read again soon, evicted from caches first.
template <class T, int N> __device__ __forceinline__ void store16_streaming(T* p, const Vec<T, N>& x) {
  each_part(p, x, [](auto* to, const auto& part) { store_global_streaming(to, part); });
}
/// p[0 .. N) = x in shared memory.
template <class T, int N> __device__ __forceinline__ void store16_shared(T* p, const Vec<T, N>& x) {
  each_part(p, x, [](auto* to, const auto& part) { store_shared(to, part); });
}

}  // namespace tg::cuda
