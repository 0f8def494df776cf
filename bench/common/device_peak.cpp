// A GPU's peak rates, by tapegrad's large GEMM and copy.
#include "common/harness.h"
#include "common/peak.h"

#include <tapegrad/tapegrad.h>

namespace tg::bench {

std::function<void()> batched(std::function<void()> f, Device device, int repeats) {
  return [f = std::move(f), device, repeats] {
    for (int i = 0; i < repeats; ++i) f();
    synchronize(device);
  };
}
int repeats_for(const std::function<void()>& f, Device device, double seconds_per_sample) {
  const auto once = batched(f, device, 1);
  once();  // loads kernels, fills caches
  return int(std::clamp(seconds_per_sample / std::max(timed(once), 1e-7), 1.0, 1000.0));
}

namespace {
// Work in 1e9 units per second, over about `seconds`; 0: one run, as a test.
double rate_of(const std::function<void()>& f, Device device, double work, double seconds, double seconds_per_sample) {
  const NoGradScope off;
  const int repeats = seconds > 0 ? repeats_for(f, device, seconds_per_sample) : 1;
  const Timing t = measure(batched(f, device, repeats), {.warmup = seconds / 3, .min_seconds = seconds, .min_runs = 3});
  return 1e-9 * work * repeats / t.p10;
}
}  // namespace

double device_product_rate(Device device, const std::string& operands, double seconds) {
  const int64_t n = seconds > 0 ? 8192 : 128;
  Rng rng{1};
  const DType d = operands == "bf16" ? DType::bf16 : operands == "f64" ? DType::f64 : DType::f32;
  const Tensor a = randn({n, n}, rng, 0, 1, d, device), b = randn({n, n}, rng, 0, 1, d, device);
  const MatmulPrecisionScope products(operands == "tf32" ? MatmulPrecision::high : MatmulPrecision::highest);
  return rate_of([&] { linear(a, b); }, device, 2 * double(n) * double(n) * double(n), seconds, 0.02);
}
double device_copy_rate(Device device, int64_t bytes, double seconds) {
  const Tensor a = zeros({bytes / 2 / int64_t(sizeof(float))}, DType::f32, device);
  return rate_of([&] { concat({a}, 0); }, device, double(bytes), seconds, 0.005);
}

}  // namespace tg::bench
