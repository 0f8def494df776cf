// Costs of the engine: ns per emitted 2x2 add in each mode, with labels and scopes, medians of 15 rounds of 10 000;
// beside libtorch where it is at hand. Then a few kernels. Run on a quiet machine; compare ratios, not figures of two
// machines.
#include "harness.h"
#include "torch_emit.h"

#include <fmt/format.h>
#include <tapegrad/tapegrad.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

using namespace tg;
namespace {
constexpr int kOps = 10000, kRounds = 15;

template <class F> double ns(F f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}
struct Row {
  const char* name;
  std::vector<double> t{};
  double median() {
    std::sort(t.begin(), t.end());
    return t[t.size() / 2] / kOps;
  }
};
void emit_table() {
  InScope a("gpt"), b("h"), c("mlp");
  const Tensor x = ones({2, 2}).label("x"), w = zeros({2, 2}).label("w").requires_grad_();
  Row rows[] = {{"eager, untracked"},           {"eager, tracked"},       {"backward of a tracked chain"},
                {"release of a tracked chain"}, {"lazy emit, untracked"}, {"lazy emit, tracked"},
                {"replay: key, run, release"}};
  const auto chain = [&](Tensor& y) {
    for (int i = 0; i < kOps; ++i) y = add(y, x);
  };
  for (int k = 0; k < kRounds; ++k) {
    Tensor y = x, loss;
    rows[0].t.push_back(ns([&] { chain(y); }));
    y = w;
    rows[1].t.push_back(ns([&] { chain(y); }));
    loss = sum(y), y = Tensor();
    rows[2].t.push_back(ns([&] { backward(loss); }));
    loss = Tensor(), y = w;
    chain(y);
    rows[3].t.push_back(ns([&] { y = Tensor(); }));
    LazyScope lazy;
    y = x;
    rows[4].t.push_back(ns([&] { chain(y); }));
    rows[6].t.push_back(ns([&] { evaluate({y}); }));
    y = w;
    rows[5].t.push_back(ns([&] { chain(y); }));
  }
  fmt::print("emit of a 2x2 add with labels, scopes and versions, ns per op\n");
  for (auto& r : rows) fmt::print("  {:<32} {:7.0f}\n", r.name, r.median());
  bench::TorchEmit torch;
  if (bench::torch_emit(torch))
    fmt::print("  libtorch {:<23} {:7.0f}\n  libtorch, tracked{:<15} {:7.0f}\n", torch.version, torch.untracked, "",
               torch.tracked);
  else
    fmt::print("  (libtorch beside it: configure with -DTG_TORCH_DIR=<site-packages/torch>)\n");
}
void threads_table() {
  const auto own = [] {
    const Tensor v = zeros({2, 2});
    Tensor w = zeros({2, 2}).requires_grad_(), y = w;
    for (int i = 0; i < 20 * kOps; ++i) y = i % 1000 ? add(y, v) : w;
  };
  const double one = ns(own) / (20 * kOps);
  const double both = ns([&] {
                        std::thread t(own);
                        own();
                        t.join();
                      }) /
                      (20 * kOps);
  fmt::print("eager, tracked: one thread {:.0f}, each of two {:.0f} ns per op\n", one, both);
}
void gemm_table() {
  fmt::print("\nmatmul f32, GFLOP/s (median, p10 .. p90)\n");
  Rng rng{1};
  struct Case {
    int64_t m, n, k;
  };
  for (auto [m, n, k] : {Case{768, 384, 128}, Case{768, 512, 128}, Case{2048, 768, 768}, Case{2048, 3072, 768},
                         Case{1024, 1024, 1024}}) {
    const Tensor a = randn({m, k}, rng), b = randn({n, k}, rng);
    const auto t = bench::measure([&] { linear(a, b); }, {.min_seconds = 0.5, .min_runs = 20});
    const double flop = 2e-9 * double(m) * double(n) * double(k);
    fmt::print("  {:>5} x {:>5} x {:>5}  {:7.1f}  ({:.1f} .. {:.1f})\n", m, n, k, flop / t.median, flop / t.p90,
               flop / t.p10);
  }
}
}  // namespace

int main() try {
  fmt::print("{}\n", bench::machine());
  emit_table();
  threads_table();
  gemm_table();
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
