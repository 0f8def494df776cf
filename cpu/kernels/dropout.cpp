// Offsets in the contiguous output are row-major positions.
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/cpu/simd/loop.h>
#include <tapegrad/cpu/simd/philox.h>
#include <tapegrad/ops/training/dropout.h>

#include <cmath>

namespace tg::cpu::TG_ISA_NS {
namespace {
using philox::Lane;
constexpr int64_t kBlocks = kVector<uint64_t>;  // blocks, a lane each

// Permuted so that interleaving two result vectors restores block order.
template <int... I> Lane block_of_lane(std::integer_sequence<int, I...>) {
  return Lane{uint64_t(I / 2 + I % 2 * int(kBlocks / 2))...};
}
template <int... I> void store_blocks(uint32_t* to, const Lane& xy, const Lane& zw, std::integer_sequence<int, I...>) {
  constexpr int n = int(kBlocks);
  const Lane first = __builtin_shufflevector(xy, zw, (I / 2 * 2 + I % 2 * n)...);
  const Lane second = __builtin_shufflevector(xy, zw, (I / 2 * 2 + 1 + I % 2 * n)...);
  std::memcpy(to, &first, sizeof first);
  std::memcpy(to + 2 * n, &second, sizeof second);
}
// Random words from block n on, in lower halves of lanes. Two sets hide the latency of multiplications.
class Stream {
 public:
  explicit Stream(Rng at) : offset_(at.offset), keys_(at.seed) {}
  static constexpr int kSets = 2;
  static constexpr int64_t kWords = kBlock + 4 * kSets * kBlocks + 4;  // words that draw() may write
  // Words from 4 (first / 4) on, at least n from `first`; returns the address of `first`.
  const uint32_t* draw(int64_t first, int64_t n, uint32_t* word) const {
    const int64_t block = first / 4, blocks = (first + n + 3) / 4 - block;
    for (int64_t i = 0; i < blocks; i += kSets * kBlocks) some(offset_ + uint64_t(block + i), word + 4 * i);
    return word + first % 4;
  }

 private:
  void some(uint64_t n, uint32_t* to) const {
    constexpr auto kEach = std::make_integer_sequence<int, int(kBlocks)>();
    Lane x[kSets], y[kSets], z[kSets], w[kSets];
#pragma GCC unroll 2
    for (int s = 0; s < kSets; ++s) {
      x[s] = block_of_lane(kEach) + (n + uint64_t(s * kBlocks));
      const Lane a = philox::product(x[s], philox::kM0);  // the first round, z = w = 0
      x[s] = (x[s] >> 32) ^ keys_.of[0][0], y[s] = Lane{}, z[s] = (a >> 32) ^ keys_.of[0][1], w[s] = a;
    }
    philox::finish(x, y, z, w, keys_);
#pragma GCC unroll 2
    for (int s = 0; s < kSets; ++s, to += 4 * kBlocks)
      if constexpr (std::endian::native == std::endian::little)
        store_blocks(to, (x[s] & philox::kWord) | y[s] << 32, (z[s] & philox::kWord) | w[s] << 32, kEach);
      else
        store_blocks(to, x[s] << 32 | (y[s] & philox::kWord), z[s] << 32 | (w[s] & philox::kWord), kEach);
  }
  uint64_t offset_;
  philox::Keys keys_;
};
void dropout(const op::Dropout& op, Bufs in, Bufs out, Context&) {
  const Stream stream(op.rng);
  // uniform(word) < p, in whole multiples of 2^-24.
  const auto limit = int32_t(std::ceil(op.p * 0x1p24));
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const auto scale = C(1 / (1 - op.p));
    T* y = out[0].data<T>();
    for_rows<2>(out[0].shape(), {out[0].strides(), in[0].strides()}, [&](int64_t n, At<2> at, At<2> step) {
      RowOperand<T> x(in[0].data<T>() + at[1], step[1]);
      uint32_t words[Stream::kWords];
      for (int64_t i = 0; i < n; i += kBlock) {
        const int64_t m = std::min(kBlock, n - i);
        const uint32_t* word = stream.draw(at[0] + i, m, words);
        const T* from = x.block(i, m);
        T* to = y + at[0] + i;
        if constexpr (std::is_same_v<C, float>) {
          for_lanes<C>(m, [=]<class V>(int64_t j) {
            const V kept = load<V>(from + j) * scale;
            if constexpr (std::is_same_v<V, C>)
              store(to + j, int32_t(word[j] >> 8) < limit ? C(0) : kept);
            else
              store(to + j, V((Vector<int32_t>)(load_vector(word + j) >> 8) < limit ? V{} : kept));
          });
        } else {
          TG_SAME_INDEX
          for (int64_t j = 0; j < m; ++j) to[j] = int32_t(word[j] >> 8) < limit ? C(0) : from[j] * scale;
        }
      }
    });
  });
}
TG_STRIDED_KERNEL(op::Dropout, cpu, dropout);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
