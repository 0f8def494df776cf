#include <tapegrad/ops/ops.h>

#include "support/helpers.h"

using namespace tg;

TEST_CASE("rope: scores depend on distances only, lengths on nothing, and no angle is lost at far positions") {
  Tensor q = random<double>({1, 8}, 1), k = random<double>({1, 8}, 2);
  const auto score = [&](int64_t i, int64_t j) {
    return sum(rope(q, {.start = i}) * rope(k, {.start = j})).item<double>();
  };
  CHECK(score(3, 1) != doctest::Approx(score(3, 2)));
  for (const int64_t by : {1, 50, 1000000}) CHECK(score(3 + by, 1 + by) == doctest::Approx(score(3, 1)).epsilon(1e-9));
  CHECK(score(77, 77) == doctest::Approx(sum(q * k).item<double>()));
  const Tensor x = random({64, 128}, 3);
  for (const int64_t start : {int64_t(0), int64_t(1) << 20, (int64_t(1) << 29) - 64}) {
    const RopeOptions o{.start = start};
    CHECK(distance(rope(x, o), rope(x.to(DType::f64), o)) < 5e-7);
  }
  CHECK(bits_of(rope(slice(x, 0, 5, 9), {.start = 5})) == bits_of(slice(rope(x), 0, 5, 9)));
}
