// Vectors: neighbouring elements that are read and written together, 16 bytes per instruction. They are stored through
// these functions alone, as nvcc splits the assignment of a struct into its elements where it likes; the test
// cuda_whole_vectors demands that none is split. For kernels, through kernel.h, and for those compiled at run time.
#pragma once
#include <tapegrad/cuda/device/ptx.h>

namespace tg::cuda {

/// N elements side by side.
template <class T, int N = int(16 / sizeof(T))> struct alignas(sizeof(T) * N) Vec {
  T x[N];
};
/// Elements of T in 16 bytes.
template <class T> inline constexpr int kVec = int(16 / sizeof(T));

/// p[0 .. N) of any memory. p is a multiple of 16 bytes, or of all N elements where they are fewer.
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

/// f(q, part) for the parts of x in 16 bytes, and where each goes.
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
/// p[0 .. N) = x in global memory. p as for load16.
template <class T, int N> __device__ __forceinline__ void store16(T* p, const Vec<T, N>& x) {
  each_part(p, x, [](auto* to, const auto& part) { store_global(to, part); });
}
/// The same of what is not read again soon: it leaves the caches first.
template <class T, int N> __device__ __forceinline__ void store16_streaming(T* p, const Vec<T, N>& x) {
  each_part(p, x, [](auto* to, const auto& part) { store_global_streaming(to, part); });
}
/// The same in shared memory.
template <class T, int N> __device__ __forceinline__ void store16_shared(T* p, const Vec<T, N>& x) {
  each_part(p, x, [](auto* to, const auto& part) { store_shared(to, part); });
}

}  // namespace tg::cuda
