// A row that begins anywhere, read by a block: 16 bytes at a time from the first aligned element on, single elements
// before and after. For the kernels that pass over long rows (loss.cu, select.cu); rows kept in registers are in
// rows.h.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

namespace tg::cuda {

/// f(j, p[j]) for j in [0, n), each by one thread of kThreads. A thread gets the same elements of a row from each call.
template <int kThreads, class T, class F> __device__ __forceinline__ void for_row(const T* p, int64_t n, F&& f) {
  constexpr int V = kVec<T>;
  const auto beyond = int64_t(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(T));
  const int64_t head = beyond ? (V - beyond < n ? V - beyond : n) : 0, vectors = (n - head) / V;
  if (int64_t(threadIdx.x) < head) f(int64_t(threadIdx.x), p[threadIdx.x]);
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    const int64_t at = head + i * V;
    const auto v = load16(p + at);
#pragma unroll
    for (int k = 0; k < V; ++k) f(at + k, v.x[k]);
  }
  for (int64_t j = head + vectors * V + threadIdx.x; j < n; j += kThreads) f(j, p[j]);
}

}  // namespace tg::cuda
