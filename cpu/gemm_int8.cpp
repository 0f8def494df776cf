#include <tapegrad/cpu/gemm_int8.h>
#include <tapegrad/cpu/thread_pool.h>

#include <vector>

namespace tg::cpu::TG_ISA_NS {
void gemm_int8(int64_t m, int64_t n, int64_t k, MatView<int8_t> a, MatView<int8_t> b,
               FunctionRef<void(int64_t i, int64_t j, int64_t n, const int32_t* sums)> store) {
  parallel_for(m, 1, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> sums(static_cast<size_t>(n));
    for (int64_t i = begin; i < end; ++i) {
      std::fill(sums.begin(), sums.end(), 0);
      for (int64_t j = 0; j < n; ++j) {
        int32_t s = 0;
        for (int64_t t = 0; t < k; ++t) s += int32_t(a.p[i * a.row + t * a.col]) * int32_t(b.p[t * b.row + j * b.col]);
        sums[size_t(j)] = s;
      }
      store(i, 0, n, sums.data());
    }
  });
}
}  // namespace tg::cpu::TG_ISA_NS
