#include "ops/torch_emit.h"

#ifdef TG_BENCH_TORCH
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace tg::bench {
namespace {
double rounds(bool tracked) {
  constexpr int n = 10000, count = 15;
  const torch::Tensor x = torch::ones({2, 2}), w = torch::ones({2, 2}, torch::requires_grad(tracked));
  std::vector<double> t;
  for (int k = 0; k < count; ++k) {
    torch::Tensor y = w;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < n; ++i) y = torch::add(y, x);
    t.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / n);
  }
  std::sort(t.begin(), t.end());
  return t[count / 2];
}
}  // namespace
bool torch_emit(TorchEmit& r) {
  r = {rounds(false), rounds(true), TORCH_VERSION};
  return true;
}
}  // namespace tg::bench
#else
namespace tg::bench {
bool torch_emit(TorchEmit&) { return false; }
}  // namespace tg::bench
#endif
