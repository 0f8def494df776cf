#include "ops/op_rows.h"

#ifdef TG_BENCH_TORCH
#include <torch/torch.h>
#include <torch/version.h>

namespace tg::bench {
namespace {
double rounds(bool tracked) {
  constexpr int n = 10000, count = 15;
  const torch::Tensor x = torch::ones({2, 2}), w = torch::ones({2, 2}, torch::requires_grad(tracked));
  std::vector<double> t;
  for (int k = 0; k < count; ++k) {
    torch::Tensor y = w;
    const double start = now();
    for (int i = 0; i < n; ++i) y = torch::add(y, x);
    t.push_back(1e9 * (now() - start) / n);
  }
  return summary(t).median;
}
}  // namespace
bool torch_emit(TorchEmit& r) {
  r = {rounds(false), rounds(true), TORCH_VERSION};
  return true;
}
}  // namespace tg::bench
#else
bool tg::bench::torch_emit(TorchEmit&) { return false; }
#endif
