// Kernel of ops/dropout.h. The output is contiguous, so the offset in it is the element's position in row-major order,
// however the input is stored.
#include <tapegrad/cpu/loop.h>
#include <tapegrad/ops/dropout.h>

#include <cmath>

namespace tg::cpu::TG_ISA_NS {
namespace {
// Words 4 (first / 4) .. of the stream, enough for n from `first` on; returns where that of `first` is.
const int32_t* draw(Rng at, int64_t first, int64_t n, int32_t* word) {
  const int64_t block = first / 4, blocks = (first + n + 3) / 4 - block;
  for (int64_t i = 0; i < blocks; ++i) {
    const Words w = random_block(at, uint64_t(block + i));
    word[4 * i] = int32_t(w.x >> 8);
    word[4 * i + 1] = int32_t(w.y >> 8);
    word[4 * i + 2] = int32_t(w.z >> 8);
    word[4 * i + 3] = int32_t(w.w >> 8);
  }
  return word + first % 4;
}
void dropout(const op::Dropout& op, Bufs in, Bufs out, Context&) {
  // uniform(word) < p, in whole multiples of 2^-24.
  const auto limit = int32_t(std::ceil(op.p * 0x1p24));
  visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const auto scale = C(1 / (1 - op.p));
    T* y = out[0].data<T>();
    using At = std::array<int64_t, 2>;
    for_rows<2>(out[0].shape(), {out[0].strides(), in[0].strides()}, [&](int64_t n, const At& at, const At& step) {
      RowOperand<T> x(in[0].data<T>() + at[1], step[1]);
      int32_t words[kBlock + 8];
      for (int64_t i = 0; i < n; i += kBlock) {
        const int64_t m = std::min(kBlock, n - i);
        const int32_t* word = draw(op.rng, at[0] + i, m, words);
        const T* from = x.block(i, m);
        T* to = y + at[0] + i;
        TG_SAME_INDEX
        for (int64_t j = 0; j < m; ++j) {
          const C kept = C(from[j]) * scale;
          to[j] = T(word[j] < limit ? C(0) : kept);
        }
      }
    });
  });
}
TG_STRIDED_KERNEL(op::Dropout, cpu, dropout);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
