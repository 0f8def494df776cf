// Descriptors go by value: no upload, and captured graphs hold them. Blocks bisect for their chunk's tensor.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <algorithm>
#include <vector>

namespace tg::cuda {

// Elements per chunk, a multiple of 16 bytes: four chunks per each of 132 SMs. A function of n alone, since sums go by
// chunks.
inline int64_t batch_chunk(int64_t n) { return std::clamp<int64_t>(n / (4 * 132) / 1024 * 1024, 1024, 16384); }
template <class D> int64_t batch_chunk(const std::vector<D>& all) {
  int64_t n = 0;
  for (const D& d : all) n += d.n;
  return batch_chunk(n);
}
inline constexpr size_t kMostParameters = 32'764;  // bytes of a kernel's parameters

// At most kMost descriptors D.
template <class D, int kMost> struct Batch {
  D item[kMost];
  int64_t first[kMost + 1];  // first chunk of each item; total
  int count = 0;
  int64_t chunk;  // elements per chunk

  explicit Batch(int64_t size) : chunk(size) { first[0] = 0; }
  bool full() const { return count == kMost; }
  int64_t chunks() const { return first[count]; }
  void add(const D& d) {  // skips empty tensors
    if (d.n == 0) return;
    item[count] = d;
    first[count + 1] = first[count] + (d.n + chunk - 1) / chunk;
    ++count;
  }
  __device__ __forceinline__ int find(int64_t c) const {
    int low = 0, high = count;  // first[low] <= c < first[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] <= c)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
};

// Batches of at most 4 or kMany: small launches carry few arguments. Calls run(batch, index of its first item).
template <class D, int kMany, class F> void for_batches(const std::vector<D>& all, int64_t chunk, F&& run) {
  constexpr size_t kFew = 4;
  const auto fill = [&]<int kMost>(size_t from) {
    Batch<D, kMost> b(chunk);
    size_t i = from;
    for (; i < all.size() && !b.full(); ++i) b.add(all[i]);
    if (b.count > 0) run(b, from);
    return i;
  };
  for (size_t i = 0; i < all.size();)
    i = all.size() - i <= kFew ? fill.template operator()<int(kFew)>(i) : fill.template operator()<kMany>(i);
}

}  // namespace tg::cuda
