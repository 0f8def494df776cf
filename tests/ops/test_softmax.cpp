#include <tapegrad/ops/ops.h>

#include <cmath>
#include <limits>

#include "support/helpers.h"

using namespace tg;
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
