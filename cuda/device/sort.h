// Stable radix sort of pairs (key << position bits | position) by key, equal keys by position. It runs on the device
// alone, without waits or host memory.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <bit>

namespace tg::cuda {

// Keys in [0, keys] and positions in [0, n) in one word.
struct PairBits {
  int position, key;
  PairBits(uint64_t keys, uint64_t n) : position(std::bit_width(n)), key(std::bit_width(keys)) {}
  bool fit() const { return position + key <= 64; }
};

// n words of device memory: fill data(), then sort(). Both may be repeated.
class SortedPairs {
 public:
  SortedPairs(const Context& c, int64_t n, PairBits bits);
  uint64_t* data() const { return data_; }  // before sort() to fill, after it sorted
  void sort() { sort(bits_.key); }
  void sort(int key_bits);  // by the lowest bits of the keys

 private:
  const Context& c_;  // the calling kernel's
  int64_t n_, tiles_;
  PairBits bits_;
  Scratch words_, other_, counts_;
  uint64_t* data_;
};

}  // namespace tg::cuda
