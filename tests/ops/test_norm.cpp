#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/node.h>

#include "support/added_norms.h"

using namespace tg;

TEST_CASE("norms of a sum: the bits of add, then the norm") {
  for (DType t : {DType::f64, DType::f32, DType::bf16})
    for (int64_t n : {1, 7, 32, 300}) check_added_norms(Device::cpu(), 5, n, t, t);
  for (int64_t n : {1, 7, 32, 300}) check_added_norms(Device::cpu(), 5, n, DType::f32, DType::bf16);
}
TEST_CASE("norms into bf16: the bits of a cast behind them") {
  for (int64_t n : {1, 7, 300}) check_narrow_norms(Device::cpu(), 5, n);
}
TEST_CASE("norms of a sum keep the sum for backward, and not its terms") {
  constexpr int64_t kNormRows = 64, kNormColumns = 256, kBytes = kNormRows * kNormColumns * 4;
  Tensor x = random({kNormRows, kNormColumns}, 1).requires_grad_(), r = random({kNormRows, kNormColumns}, 2);
  const auto kept = [&](auto norm) {
    const int64_t before = memory_stats().live;
    const Tensor y = norm(x * 2.0, r * 2.0);
    return double(memory_stats().live - before) / double(kBytes);
  };
  CHECK(kept([](const Tensor& a, const Tensor& b) { return add_rms_norm(a, b).y; }) < 2.1);
  CHECK(kept([](const Tensor& a, const Tensor& b) { return add_layer_norm(a, b).y; }) < 2.1);
}
TEST_CASE("norms of a sum take over the memory of both terms") {
  constexpr int64_t kNormRows = 64, kNormColumns = 256, kBytes = kNormRows * kNormColumns * 4;
  const Tensor x = random({kNormRows, kNormColumns}, 1), r = random({kNormRows, kNormColumns}, 2);
  for (auto norm : {NormForm::plain, NormForm::rms}) {
    const LazyScope lazy;
    const int64_t before = memory_stats().live;
    reset_peak();
    const AddedNorm a = added_norm(norm, std::vector{x * 2.0, r * 2.0});
    eval({a.sum, a.y});
    CHECK(double(memory_stats().peak - before) / double(kBytes) < 2.1);
  }
}
TEST_CASE("a gradient that flows into the sum alone is the gradient of both terms") {
  Tensor x = random({2, 3}, 1).requires_grad_(), r = random({2, 3}, 2).requires_grad_();
  const AddedNorm a = add_layer_norm(x, r);
  const Tensor ds = random({2, 3}, 3);
  const auto kernels = engine_stats().kernels;
  const GradMap g = backward(a.sum, ds);
  CHECK(engine_stats().kernels == kernels);
  CHECK(bits_of(g[x]) == bits_of(ds));
  CHECK(bits_of(g[r]) == bits_of(ds));
}
