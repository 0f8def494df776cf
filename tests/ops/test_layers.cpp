// Norms of a sum: the bits of two ops, memory. Softmax of rows of any length, with extreme, infinite or NaN elements.
// Far positions of rope. Long sums.
#include <tapegrad/core/node.h>
#include <tapegrad/ops/ops.h>

#include <cmath>

#include "support/added_norms.h"
#include "support/long_sums.h"
#include "support/threads.h"

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
namespace {
std::vector<float> softmax_of(const std::vector<float>& x) { return values(softmax(tensor(x, {int64_t(x.size())}))); }
}  // namespace

TEST_CASE("softmax finds the largest of a row wherever it stands, and a NaN too") {
  for (const size_t n : {1, 2, 15, 16, 17, 63, 64, 65, 130}) {
    CAPTURE(n);
    for (size_t at = 0; at < n; ++at) {
      std::vector<float> x(n, -2);
      x[at] = 200;  // e^200 overflows
      const std::vector<float> y = softmax_of(x);
      for (size_t j = 0; j < n; ++j) CHECK(y[j] == (j == at ? 1 : 0));
      x[at] = kNan;
      for (const float v : softmax_of(x)) CHECK(std::isnan(v));
      for (const float v : values(log_softmax(tensor(x, {int64_t(n)})))) CHECK(std::isnan(v));
      const Tensor target = tensor<int64_t>({0}, {1});
      CHECK(std::isnan(cross_entropy(tensor(x, {1, int64_t(n)}), target).item<float>()));
    }
  }
}
TEST_CASE("softmax of what lies far below the largest: to the last bits, down to the smallest normal number") {
  std::vector<float> x{0};
  for (int i = 1; i <= 1100; ++i) x.push_back(float(-i) / 10);
  const std::vector<float> y = softmax_of(x);
  double sum = 0;
  for (const float v : x) sum += std::exp(double(v));
  for (size_t j = 0; j < x.size(); ++j) {
    CAPTURE(x[j]);
    const double want = std::exp(double(x[j])) / sum;
    if (x[j] >= -84)
      CHECK(std::abs(y[j] - want) <= 1e-6 * want);
    else
      CHECK(std::abs(y[j] - want) <= 0x1p-126);
  }
  CHECK(softmax_of({0, -kInf, 0, -1000}) == std::vector<float>{0.5f, 0, 0.5f, 0});
  for (const float v : softmax_of({-kInf, -kInf})) CHECK(std::isnan(v));
  for (const float v : softmax_of({kInf, 0})) CHECK(std::isnan(v));
}
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
TEST_CASE("rounding errors of sums do not grow with the number of terms: rows, columns, mean, var, norm gradients") {
  for (const int64_t n : {2, 7, 129, 4097}) check_long_sums(n, Device::cpu());
  if (!kSanitized)  // more chunks
    for (const int64_t n : {1 << 16, 1 << 20}) check_long_sums(n, Device::cpu());
}
TEST_CASE("rounding errors of statistics and softmax do not grow with the length of a row") {
  check_long_rows(kSanitized ? 1 << 15 : 1 << 22, Device::cpu());
}
TEST_CASE("long sums have the same bits for any number of threads") {
  const Tensor x = random({40'000, 5}, 1), row = random({200'001}, 2), w = random({5}, 3);
  const auto all = [&] {
    const Tensor v = w.detach().requires_grad_(), b = w.detach().requires_grad_();
    const GradMap g = backward(sum(layer_norm(x, v, b) * x));
    return std::vector{sum(x, {0}), var(x, {0}), sum(row), var(row), softmax(row), g[v], g[b]};
  };
  std::vector<Tensor> one;
  {
    const ThreadsScope threads(1);
    one = all();
  }
  for (const int n : {2, 3, 7}) {
    const ThreadsScope threads(n);
    check_same_bits(all(), one);
  }
}
