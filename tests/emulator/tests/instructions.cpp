#include "instructions.h"

#include <doctest/doctest.h>

#include <cmath>

#include "support.h"

namespace {

std::vector<__nv_bfloat16> bf16_noise(std::size_t n, unsigned seed) {
  std::vector<__nv_bfloat16> r;
  for (const float f : noise(n, seed)) r.emplace_back(f);
  return r;
}

}  // namespace

TEST_CASE("TMA and wgmma: tiles at any row, and zeros outside the matrix") {
  under_schedules([] {
    const std::size_t a_rows = 100, b_rows = 50, columns = 104;
    const auto a = bf16_noise(a_rows * columns, 1), b = bf16_noise(b_rows * columns, 2);
    const Buffer<__nv_bfloat16> da(a), db(b);
    const Buffer<float> y(64 * 64);
    for (const int row : {0, 64, -8}) {
      CAPTURE(row);
      check(instructions::wgmma(da, a_rows, db, b_rows, columns, row, y, nullptr));
      const auto got = y.host();
      double worst = 0;
      for (std::size_t i = 0; i < 64; ++i)
        for (std::size_t j = 0; j < 64; ++j) {
          double sum = 0;
          const auto r = static_cast<std::ptrdiff_t>(i) + row;
          for (std::size_t k = 0; r >= 0 && r < 100 && j < b_rows && k < columns; ++k)
            sum += double(__bfloat162float(a[std::size_t(r) * columns + k])) * __bfloat162float(b[j * columns + k]);
          worst = std::max(worst, std::abs(got[i * 64 + j] - sum));
        }
      CHECK(worst <= 1e-5);
    }
  });
}

TEST_CASE("shuffles and votes, of a whole warp and of parts") {
  under_schedules([] {
    const auto x = noise(32);
    const Buffer<float> dx(x), y(9 * 32);
    check(instructions::lanes(dx, y, nullptr));
    const auto got = y.host();
    const auto positive = static_cast<float>(std::ranges::count_if(x, [](float v) { return v > 0; }));
    for (std::size_t t = 0; t < 32; ++t) {
      CAPTURE(t);
      CHECK(got[t] == x[5]);
      CHECK(got[32 + t] == x[t / 8 * 8 + 3]);
      CHECK(got[64 + t] == x[t ^ 17]);
      CHECK(got[96 + t] == x[t % 16 < 14 ? t + 2 : t]);
      CHECK(got[128 + t] == x[t < 3 ? t : t - 3]);
      CHECK(got[160 + t] == positive);
      CHECK(got[192 + t] == 2.0F);
      CHECK(got[224 + t] == x[t ^ 8]);
      CHECK(got[256 + t] == x[t % 2 == 0 ? 30 : 1]);
    }
  });
}

TEST_CASE("bf16 rounds to nearest even, as the type of the library") {
  for (const auto& [from, to] : {std::pair{1.00390625F, 0x3f80},
                                 {1.01171875F, 0x3f82},
                                 {1.0F, 0x3f80},
                                 {-0.0F, 0x8000},
                                 {3.4e38F, 0x7f80},
                                 {1e-45F, 0x0000},
                                 {9.2e-41F, 0x0001}})
    CHECK(__float2bfloat16(from).bits == to);
  CHECK(std::isnan(__bfloat162float(__float2bfloat16(NAN))));
}
