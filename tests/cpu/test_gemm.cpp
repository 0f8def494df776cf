// Products of the CPU backend: every way through cpu/gemm/gemm.cpp and cpu/lora.cpp against double precision, and that
// a row does not depend on those around it or on the number of threads. The ops' own cases are elsewhere.
#include <tapegrad/core/cast.h>
#include <tapegrad/core/registry.h>
#include <tapegrad/cpu/thread_pool.h>
#include <tapegrad/ops/lora.h>
#include <tapegrad/ops/matmul.h>

#include "support/helpers.h"

using namespace tg;

namespace {
constexpr int64_t kSizes[] = {1, 5, 12, 16, 17, 31, 33, 64, 100};
constexpr int64_t kDepths[] = {1, 7, 16, 64, 65, 400};

// The largest distance from the product in double, over the product of the absolute values.
double worst(const Tensor& y, const Tensor& a, const Tensor& b) {
  const Tensor wide_a = a.to(DType::f64), wide_b = b.to(DType::f64);
  const std::vector<float> got = values(y);
  const std::vector<double> want = values<double>(matmul(wide_a, wide_b));
  const std::vector<double> scale = values<double>(matmul(abs(wide_a), abs(wide_b)));
  double w = 0;
  for (size_t i = 0; i < want.size(); ++i) w = std::max(w, std::abs(double(got[i]) - want[i]) / scale[i]);
  return w;
}
// Where own register tiles compute: the baseline is Eigen's.
bool own_tiles() { return kernel_level(Backend::cpu) >= 3; }
}  // namespace

TEST_CASE("products of many sizes and layouts against f64; a row alone has the same bits") {
  NoGradScope off;
  for (const int64_t m : kSizes)
    for (const int64_t n : kSizes)
      for (const int64_t k : kDepths) {
        const Tensor a = random({m, k}, uint64_t(m)), b = random({k, n}, uint64_t(n + k));
        for (const bool down : {false, true})
          for (const bool columns : {false, true}) {
            const Tensor x = down ? stored(a, Store::transposed) : a, w = columns ? stored(b, Store::transposed) : b;
            const Tensor y = matmul(x, w);
            CAPTURE(m);
            CAPTURE(n);
            CAPTURE(k);
            CAPTURE(down);
            CAPTURE(columns);
            CHECK(worst(y, a, b) < 2e-6);
            // One row of a transposed matrix lies in both directions, which matters for few columns.
            if (!own_tiles() || (down && n <= 16)) continue;
            for (const int64_t r : {int64_t(0), m / 2, m - 1})
              CHECK(bits_of(matmul(slice(x, 0, r, r + 1), w)) == bits_of(slice(y, 0, r, r + 1)));
          }
      }
}

// Operands that tiles pack or share, in one group of blocks of k and in several; rows a multiple of a page apart; tiles
// of more columns than are multiplied at once.
TEST_CASE("large products: against f64, the same bits with one thread and with all, a row alone") {
  NoGradScope off;
  struct Sizes {
    int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Sizes{97, 33, 400},
                                {300, 100, 1024},
                                {100, 700, 900},
                                {250, 513, 1030},
                                {130, 2100, 65},
                                {1100, 1024, 800},
                                {1024, 1100, 800},
                                {2000, 40, 7}}) {
    const Tensor a = random({m, k}, uint64_t(m)), b = random({k, n}, uint64_t(n + k));
    for (const bool down : {false, true})
      for (const bool columns : {false, true}) {
        const Tensor x = down ? stored(a, Store::transposed) : a, w = columns ? stored(b, Store::transposed) : b;
        const Tensor y = matmul(x, w);
        const int all = cpu::num_threads();
        cpu::set_num_threads(1);
        const Tensor one = matmul(x, w);
        cpu::set_num_threads(all);
        CAPTURE(m);
        CAPTURE(n);
        CAPTURE(k);
        CAPTURE(down);
        CAPTURE(columns);
        CHECK(worst(y, a, b) < 2e-6);
        CHECK(bits_of(y) == bits_of(one));
        if (!own_tiles()) continue;
        for (const int64_t r : {int64_t(0), m / 2, m - 1})
          CHECK(bits_of(matmul(slice(x, 0, r, r + 1), w)) == bits_of(slice(y, 0, r, r + 1)));
      }
  }
}

TEST_CASE("x A B: the same bits with one thread and with all") {
  NoGradScope off;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const int64_t rows : {1, 12, 50, 64, 200})
      for (const int64_t rank : {1, 4, 8, 16, 40}) {
        const Tensor x = random({rows, 300}, 1).to(dtype), a = random({300, rank}, 2).to(dtype),
                     b = random({rank, 350}, 3).to(dtype), base = random({rows, 350}, 4).to(dtype);
        const int all = cpu::num_threads();
        const Tensor y = lora(x, a, b, 0.5), sum = lora(x, a, b, 0.5, base);
        cpu::set_num_threads(1);
        const Tensor one = lora(x, a, b, 0.5), one_sum = lora(x, a, b, 0.5, base);
        cpu::set_num_threads(all);
        CAPTURE(name_of(dtype));
        CAPTURE(rows);
        CAPTURE(rank);
        CHECK(bits_of(y) == bits_of(one));
        CHECK(bits_of(sum) == bits_of(one_sum));
      }
}
