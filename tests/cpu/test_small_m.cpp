#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/matmul.h>

#include "support/bf16_paths.h"
#include "support/helpers.h"
#include "support/threads.h"

using namespace tg;

namespace {
// Rows 20, 21, ... of a (40, k), by b (k, n) in either layout and by linear with a bias.
void check_small_m(int64_t n, int64_t k, DType dtype) {
  CAPTURE_ALL(n, k);
  const Tensor a = random({40, k}, 1).to(dtype), b = random({k, n}, 2).to(dtype), bias = random({n}, 3).to(dtype);
  for (const bool columns : {false, true}) {
    CAPTURE(columns);
    const Tensor w = columns ? stored(b, Store::transposed) : b;
    const Tensor y = matmul(a, w), biased = linear(a, transpose(w), bias);
    for (int64_t m = 1; m <= 17; ++m) {
      CAPTURE(m);
      const Tensor x = slice(a, 0, 20, 20 + m), few = matmul(x, w);
      CHECK(bits_of(few) == bits_of(slice(y, 0, 20, 20 + m)));
      CHECK(bits_of(few) == bits_of(on_one_thread([&] { return matmul(x, w); })));
      CHECK(bits_of(linear(x, transpose(w), bias)) == bits_of(slice(biased, 0, 20, 20 + m)));
      CHECK(bits_of(matmul(stored(x, Store::transposed), w)) == bits_of(few));
    }
  }
}
// More than a tile of columns; segments of k that end inside a cache line; more than caches hold.
constexpr int64_t kShapes[][2] = {{70, 383}, {129, 801}, {2100, 770}, {1100, 3075}};
}  // namespace

TEST_CASE("one to sixteen rows in f32 and f64 have the bits that they have among many") {
  if (tg::detail::kernel_level(Backend::cpu) < 3) return;  // Eigen computes
  NoGradScope off;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto [n, k] : kShapes)
      if (small_enough(64, n, k)) check_small_m(n, k, dtype);
}

TEST_CASE("one to sixteen rows in bf16 have the bits that they have among many, by each way to multiply") {
  if (tg::detail::kernel_level(Backend::cpu) < 3) return;
  NoGradScope off;
  for_each_path(cpu::kBf16Paths, [](cpu::Bf16Path) {
    for (const auto [n, k] : kShapes)
      if (small_enough(64, n, k)) check_small_m(n, k, DType::bf16);
  });
}
