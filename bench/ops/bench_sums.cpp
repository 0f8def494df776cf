// Error and time of reductions: sums, means, variances and gradients of a norm's weight and bias over 2^10 to 2^25
// terms. The error is the distance to the f64 op over the sum of the terms' absolute values (variance: over the mean
// square). compare_sums.py adds PyTorch.
#include <tapegrad/tapegrad.h>

#include <cmath>
#include <vector>

#include "common/program.h"
#include "common/stats.h"

namespace {
using namespace tg;

constexpr const char* kData[] = {"constant", "uniform", "alternating", "one large"};
// Element i; compare_sums.py has the same formula.
double element(size_t data, int64_t i) {
  const double x = double(i) * 0.6180339887498949, uniform = x - std::floor(x);
  switch (data) {
    case 0: return 0.1;
    case 1: return uniform;
    case 2: return i / 2 % 2 ? -uniform : uniform;
    default: return i < 2 ? 1e6 : 0.1;
  }
}
struct Reduction {
  const char* name;
  int64_t columns;
  Tensor (*f)(const Tensor& x);  // x: (terms, columns)
  bool squares = false;          // reduces squares of values near x
};
template <int kWhich> Tensor norm_gradient(const Tensor& x) {
  const Tensor w = full({x.shape()[1]}, 1, x.dtype()).requires_grad_(), b = w.detach().requires_grad_();
  const GradMap g = backward(sum(layer_norm(x, w, b) * x));
  return g[kWhich ? b : w];
}
const Reduction kReductions[] = {
    {"sum", 1, [](const Tensor& x) { return sum(x); }},
    {"sum of columns", 2, [](const Tensor& x) { return sum(x, {0}); }},
    {"mean of columns", 2, [](const Tensor& x) { return mean(x, {0}); }},
    {"var", 1, [](const Tensor& x) { return var(x); }, true},
    {"var of columns", 2, [](const Tensor& x) { return var(x, {0}); }, true},
    {"norm's weight", 2, norm_gradient<0>},
    {"norm's bias", 2, norm_gradient<1>},
};

double largest(const Tensor& t) {
  double most = 0;
  for (const double x : t.to_vector<double>()) most = std::max(most, std::abs(x));
  return most;
}
int run(int64_t most, bool quick) {
  if (quick) most = 10;
  fmt::print("{:<16} {:<12} {:>5} {:>12} {:>12}\n", "reduction", "data", "terms", "error", "us");
  for (const Reduction& r : kReductions)
    for (size_t data = 0; data < std::size(kData); ++data)
      for (int64_t log = 10; log <= most; log += 5) {
        const int64_t n = int64_t(1) << log;
        std::vector<float> host(size_t(n * r.columns));
        for (size_t i = 0; i < host.size(); ++i) host[i] = float(element(data, int64_t(i)));
        const Tensor x = tensor(host, {n, r.columns}), wide = x.to(DType::f64);
        const double want = r.squares ? largest(mean(wide * wide)) : largest(r.f(abs(wide)));
        const double error = largest(r.f(x).to(DType::f64) - r.f(wide)) / std::max(want, 1e-6);
        const bench::Timing t = bench::measure(
            [&] { (void)r.f(x); }, {.warmup = quick ? 0 : 1.0, .min_seconds = quick ? 0 : 0.05, .min_runs = 1});
        fmt::print("{:<16} {:<12} {:>5} {:>12.2e} {:>12.1f}\n", r.name, kData[data], fmt::format("2^{}", log), error,
                   1e6 * t.median);
      }
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  int64_t most = 25;
  bool quick = false;
  const auto declare = [&](bench::Command& c) {
    c.option("--most", "2^N terms at most", most, 10, 25);
    c.toggle("--quick", "2^10 terms, each once, as a test", quick);
    return [&] { return run(most, quick); };
  };
  return apps::run_program(argc, argv, {"bench_sums", "Measures how exact reductions are.", declare});
}
