// 16 bytes at a time from the first aligned element on.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

namespace tg::cuda {

/// Calls f(j, x) for the packs of [0, n): x is a Vec at p[j], 16 bytes or one element. A thread gets the same elements
/// in each call.
template <int kThreads, class T, class F> __device__ __forceinline__ void for_row_packs(const T* p, int64_t n, F&& f) {
  constexpr int V = kVec<T>;
  const auto beyond = int64_t(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(T));
  const int64_t head = beyond ? (V - beyond < n ? V - beyond : n) : 0, vectors = (n - head) / V;
  if (int64_t(threadIdx.x) < head) f(int64_t(threadIdx.x), load16<1>(p + threadIdx.x));
#pragma unroll 2
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) f(head + i * V, load16(p + head + i * V));
#pragma unroll 1
  for (int64_t j = head + vectors * V + threadIdx.x; j < n; j += kThreads) f(j, load16<1>(p + j));
}
/// Calls f(j, p[j]) with the threads of for_row_packs().
template <int kThreads, class T, class F> __device__ __forceinline__ void for_row(const T* p, int64_t n, F&& f) {
  for_row_packs<kThreads>(p, n, [&]<int N>(int64_t j, const Vec<T, N>& x) {
#pragma unroll
    for (int k = 0; k < N; ++k) f(j + k, x.x[k]);
  });
}

}  // namespace tg::cuda
