#include "support/long_sums.h"

#include "support/threads.h"

using namespace tg;

TEST_CASE("rounding errors of sums do not grow with the number of terms: rows, columns, mean, var, norm gradients") {
  for (const int64_t n : {2, 7, 129, 4097}) check_long_sums(n, Device::cpu());
  if (!kSanitized)  // sums of more chunks
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
