// A stable radix sort of 64-bit words by some of their bits, 8 bits a pass: pairs (key << bits of positions | position)
// come out in the order of keys, equal keys in the order of positions. On the device alone, with no wait and no memory
// that the host looks at. For kernels that add by index in a fixed order (indexing.cu).
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <bit>

namespace tg::cuda {

// Keys in [0, keys] and positions in [0, n) packed in one word.
struct PairBits {
  int position, key;
  PairBits(uint64_t keys, uint64_t n) : position(std::bit_width(n)), key(std::bit_width(keys)) {}
  bool fit() const { return position + key <= 64; }
};

// n words in memory of the device, to be filled and then sorted.
class SortedPairs {
 public:
  SortedPairs(const Context& c, int64_t n, PairBits bits);
  uint64_t* data() const { return data_; }  // before sort() to write to, after it sorted
  void sort();

 private:
  const Context& c_;  // of the kernel that it lives in
  int64_t n_, tiles_;
  PairBits bits_;
  Scratch words_, other_, counts_;
  uint64_t* data_;
};

}  // namespace tg::cuda
