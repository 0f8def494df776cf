// Many tensors in one launch: a kernel gets their descriptors by value, so that nothing is uploaded and a captured
// graph holds them. Tensors are cut in chunks, and a block finds the tensor of its chunk by bisection. For the kernels
// of the optimiser (optim_step.cu).
#pragma once
#include <tapegrad/cuda/device/kernel.h>

namespace tg::cuda {

inline constexpr int64_t kBatchChunk = 16384;      // elements
inline constexpr size_t kMostParameters = 32'764;  // bytes, of all parameters of a kernel

// At most kMost descriptors D, which have a member n: the number of elements.
template <class D, int kMost> struct Batch {
  D item[kMost];
  int64_t first[kMost + 1];  // chunk of each item; behind the last, their number
  int count = 0;

  Batch() { first[0] = 0; }
  bool full() const { return count == kMost; }
  int64_t chunks() const { return first[count]; }
  void add(const D& d) {  // empty tensors take no part
    if (d.n == 0) return;
    item[count] = d;
    first[count + 1] = first[count] + (d.n + kBatchChunk - 1) / kBatchChunk;
    ++count;
  }
  __device__ __forceinline__ int find(int64_t chunk) const {
    int low = 0, high = count;  // first[low] <= chunk < first[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] <= chunk)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
};

}  // namespace tg::cuda
