#include <tapegrad/ops/ops.h>

#include "support/helpers.h"
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/emulator.h>
#endif

using namespace tg;
namespace {
constexpr int64_t kCounts[] = {1, 2, 3, 4, 5, 7, 8, 9, 1023, 1027, 70001};  // several passes for the last
constexpr uint64_t kOffsets[] = {0, 1, (uint64_t(1) << 32) - 2};            // block numbers cross 32 bits
constexpr DType kFloats[] = {DType::f64, DType::f32, DType::bf16};

bool emulated() { return has(detail::runtime_of(Device::cuda()).describe(0), "emulat"); }
double steps_apart(const Tensor& a, const Tensor& b) {
  const int bits = a.dtype() == DType::bf16 ? 8 : 24;  // f64 draws are those of f32
  const auto x = values<double>(a.detach().to(Device::cpu()).to(DType::f64)), y = values<double>(b.to(DType::f64));
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    int exponent = 0;
    std::frexp(std::max(std::abs(x[i]), std::abs(y[i])), &exponent);
    most = std::max(most, std::abs(x[i] - y[i]) / std::ldexp(1.0, exponent - bits));
  }
  return most;
}
template <class F> void for_draws(F f) {
  for (const int64_t n : kCounts)
    for (const uint64_t offset : kOffsets)
      for (const DType t : kFloats) {
        CAPTURE_ALL(n, offset, name_of(t));
        Rng device{3, offset}, cpu = device;
        f(n, t, device, cpu);
        CHECK(device == cpu);
      }
}
}  // namespace

TEST_CASE("rand: the bits of the CPU at all sizes, offsets and dtypes") {
  for_draws([](int64_t n, DType t, Rng& a, Rng& b) {
    const Tensor x = rand({n}, a, -1, 3, t, Device::cuda());
    CHECK(x.device() == Device::cuda());
    CHECK(bits_of(x) == bits_of(rand({n}, b, -1, 3, t)));
    CHECK(bits_of(rand({n}, a, 1, 1.1, t, Device::cuda())) == bits_of(rand({n}, b, 1, 1.1, t)));
  });
}
TEST_CASE("randn and trunc_normal: the numbers of the CPU to 2 ulp, bit for bit on the emulator") {
  const auto same = [](const Tensor& device, const Tensor& cpu) {
    if (emulated())
      CHECK(bits_of(device) == bits_of(cpu));
    else
      CHECK(steps_apart(device, cpu) <= 2);
  };
  for_draws([&](int64_t n, DType t, Rng& a, Rng& b) {
    same(randn({n}, a, 0, 1, t, Device::cuda()), randn({n}, b, 0, 1, t));
    same(trunc_normal({n}, a, 0, 0.02, t, Device::cuda()), trunc_normal({n}, b, 0, 0.02, t));
  });
}
TEST_CASE("dropout: the mask of the CPU at all sizes and offsets, whatever the layout of the input") {
  for_draws([](int64_t n, DType t, Rng& a, Rng& b) {
    const Tensor x = random({n}, 5, 1, 2).to(t);
    CHECK(bits_of(dropout(x.to(Device::cuda()), 0.3, a)) == bits_of(dropout(x, 0.3, b)));
  });
  const Tensor x = random({24, 40}, 6, 1, 2), on_device = x.to(Device::cuda());
  for (const Store how : kStores) {
    CAPTURE(int(how));
    Rng a{7, 2}, b = a;
    CHECK(bits_of(dropout(stored(on_device, how), 0.5, a)) == bits_of(dropout(x, 0.5, b)));
  }
}
TEST_CASE("dropout: what draws exactly the probability is kept") {
  for (const int64_t n : {3, 4, 8, 9}) {
    CAPTURE(n);
    Rng draws{3, 0};
    const auto words = values<double>(rand({n}, draws, 0, 1, DType::f64));
    for (const double p : words)
      for (const DType t : {DType::f32, DType::bf16}) {
        Rng a{3, 0}, b = a;
        const Tensor x = filled({n}, 1.0f).to(t), y = dropout(x, p, b);
        CHECK(bits_of(dropout(x.to(Device::cuda()), p, a)) == bits_of(y));
        for (int64_t i = 0; i < n; ++i)
          CHECK((values<double>(y.to(DType::f64))[size_t(i)] == 0) == (words[size_t(i)] < p));
      }
  }
}
#ifdef TG_CUDA_EMULATED
TEST_CASE("nothing is launched to make no elements") {
  const Device device = Device::cuda();
  synchronize(device);
  const auto before = simt::statistics().launches;
  Rng rng{3, 0};
  CHECK(full({0, 2}, 1, DType::f32, device).numel() == 0);
  CHECK(arange(0, 0, 1, DType::f32, device).numel() == 0);
  CHECK(rand({0}, rng, 0, 1, DType::f32, device).to(DType::i32).numel() == 0);
  synchronize(device);
  CHECK(simt::statistics().launches == before);
}
#endif
TEST_CASE("full and arange: the bits of the CPU in every dtype") {
  for (int t = 0; t < kDTypes; ++t)
    for (const int64_t n : {1, 5, 63, 127}) {
      const DType d = DType(t);
      CAPTURE(name_of(d));
      CHECK(bits_of(full({n}, 1, d, Device::cuda())) == bits_of(full({n}, 1, d)));
      CHECK(bits_of(zeros({n}, d, Device::cuda())) == bits_of(zeros({n}, d)));
      if (d == DType::boolean) continue;
      CHECK(bits_of(arange(0, double(n), 1, d, Device::cuda())) == bits_of(arange(0, double(n), 1, d)));
    }
  CHECK(bits_of(arange(300000, -300001, -7, DType::i64, Device::cuda())) == bits_of(arange(300000, -300001, -7)));
  CHECK(bits_of(full({70001}, 0.1, DType::bf16, Device::cuda())) == bits_of(full({70001}, 0.1, DType::bf16)));
}
