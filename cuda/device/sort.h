// Stable radix sort of words (key << position bits | position), without synchronisation.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <bit>

namespace tg::cuda {

struct PairBits {
  int position, key;
  PairBits(uint64_t keys, uint64_t n) : position(std::bit_width(n)), key(std::bit_width(keys)) {}
  bool fit() const { return position + key <= 64; }
};

// n words of device memory: fill data(), then sort().
class SortedPairs {
 public:
  SortedPairs(const Context& c, int64_t n, PairBits bits);
  uint64_t* data() const { return data_; }  // unsorted, then sorted
  void sort() { sort(bits_.key); }
  void sort(int key_bits);

 private:
  const Context& c_;  // context of the calling kernel
  int64_t n_, tiles_;
  PairBits bits_;
  Scratch words_, other_, counts_;
  uint64_t* data_;
};

}  // namespace tg::cuda
