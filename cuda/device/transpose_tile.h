// Byte transpose of tiles of 128 rows by 8 packs of V columns. Thread t of 256 has pack t % 8 in four rows of group t /
// 8. Columns are XOR-swizzled by pack in groups of 16 bytes against bank conflicts.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

namespace tg::cuda {

template <int V> struct TransposeTile {
  static constexpr int kThreads = 256, kTall = 128, kPacks = 8, kWide = kPacks * V;
  Vec<int8_t, 16> parts[kWide][kTall / 16];

  static __device__ __forceinline__ int pack() { return int(threadIdx.x) % kPacks; }
  static __device__ __forceinline__ int group() { return int(threadIdx.x) / kPacks; }
  __device__ __forceinline__ void put(int e, const Vec<int8_t, 4>& q) {
    auto& part = parts[pack() * V + e][group() / 4 ^ pack()];
    store16_shared(part.x + group() % 4 * 4, q);
  }
  // Columns become rows of memory, ld apart. wide: 16 bytes at a time; `rows` is a multiple of 16. For all threads,
  // after a barrier.
  __device__ __forceinline__ void store(int8_t* to, int64_t ld, int64_t columns, int64_t rows, bool wide) const {
    if (wide) {
      for (int k = int(threadIdx.x); k < kWide * (kTall / 16); k += kThreads) {
        const int c = k / (kTall / 16), part = k % (kTall / 16);
        if (c < columns && part * 16 < rows) store16(to + c * ld + part * 16, parts[c][part ^ c / V]);
      }
      return;
    }
    for (int k = int(threadIdx.x); k < kWide * kTall; k += kThreads) {
      const int c = k / kTall, r = k % kTall;
      if (c < columns && r < rows) to[c * ld + r] = parts[c][r / 16 ^ c / V].x[r % 16];
    }
  }
};

}  // namespace tg::cuda
