// bench/gpu/run.py runs these tests first.
#include <tapegrad/ops/ops.h>

#include "cuda/ptx_probes.h"
#include "support/helpers.h"

using namespace tg;
namespace {
const Context kPtxContext{Device::cuda(), "ptx"};
template <class T> std::vector<T> numbers(size_t n, uint64_t seed, int lo, int hi) {  // integers in [lo, hi)
  Rng rng{seed};
  std::vector<T> v(n);
  for (auto& x : v) x = T(float(int(std::floor(double(lo) + (hi - lo) * double(rng.uniform())))));
  return v;
}
template <class T> Tensor device(const std::vector<T>& v) { return tensor(v, {int64_t(v.size())}, Device::cuda()); }
template <class T> T* data(const Tensor& t) { return reinterpret_cast<T*>(t.value()->storage->data); }
// y (m, n) = c + a b^T of integers; rows of a and b are `stride` apart.
template <class A, class T>
void check_product(size_t m, size_t n, size_t k, size_t stride, const std::vector<A>& a, const std::vector<A>& b,
                   const std::vector<T>& c, const Tensor& y) {
  const std::vector<T> x(a.begin(), a.end()), w(b.begin(), b.end()), got = values<T>(y);
  size_t wrong = 0;
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j) {
      T sum = c[i * n + j];
      for (size_t t = 0; t < k; ++t) sum += x[i * stride + t] * w[j * stride + t];
      wrong += got[i * n + j] != sum;
    }
  CHECK(wrong == 0);
}
}  // namespace

TEST_CASE("PTX: vectors are stored whole, and nothing beside them") {
  const auto x = numbers<uint8_t>(64, 1, 0, 256);
  const Tensor from = device(x), to = device(std::vector<uint8_t>(4 * 3 * 64, 7));
  cuda::probe_stores(kPtxContext, data<uint8_t>(from), data<uint8_t>(to));
  const auto y = values<uint8_t>(to);
  for (size_t i = 0; i < y.size(); ++i) {
    CAPTURE(i);
    CHECK(y[i] == (i % 64 < (i < 576 ? 60 : 56) ? x[i % 64] : 7));
  }
}
TEST_CASE("PTX: cp_async16, with groups and zeros") {
  const auto x = numbers<int32_t>(64 * 4, 1, 1, 1000000);
  const Tensor from = device(x), to = device(std::vector<int32_t>(64 * 4, -1));
  cuda::probe_cp_async(kPtxContext, data<uint32_t>(from), data<uint32_t>(to));
  const auto y = values<int32_t>(to);
  for (size_t i = 0; i < x.size(); ++i) CHECK(y[i] == (i / 4 % 2 == 0 ? x[i] : 0));
}
TEST_CASE("PTX: ldmatrix_x4, plain and transposed") {
  const auto x = numbers<uint16_t>(32 * 8, 2, 0, 65536);
  for (bool transposed : {false, true}) {
    const Tensor from = device(x), to = device(std::vector<int32_t>(32 * 4, -1));
    cuda::probe_ldmatrix(kPtxContext, data<uint16_t>(from), data<uint32_t>(to), transposed);
    const auto y = values<int32_t>(to);
    for (size_t l = 0; l < 32; ++l)
      for (size_t m = 0; m < 4; ++m)
        for (size_t i = 0; i < 2; ++i) {
          const size_t row = transposed ? l % 4 * 2 + i : l / 4, column = transposed ? l / 4 : l % 4 * 2 + i;
          CHECK(uint16_t(uint32_t(y[l * 4 + m]) >> 16 * i) == x[(m * 8 + row) * 8 + column]);
        }
  }
}
TEST_CASE("PTX: mma_bf16") {
  const auto a = numbers<bf16>(16 * 16, 3, -8, 8), b = numbers<bf16>(8 * 16, 4, -8, 8);
  const auto c = numbers<float>(16 * 8, 5, -100, 100);
  const Tensor da = device(a), db = device(b), d = device(c);
  cuda::probe_mma_bf16(kPtxContext, data<bf16>(da), data<bf16>(db), data<float>(d));
  check_product(16, 8, 16, 16, a, b, c, d);
}
TEST_CASE("PTX: mma_s8") {
  auto a = numbers<int8_t>(16 * 32, 6, -128, 128), b = numbers<int8_t>(8 * 32, 7, -128, 128);
  std::fill_n(a.begin(), 32, int8_t(-128)), std::fill_n(b.begin(), 32, int8_t(-128));
  const auto c = numbers<int32_t>(16 * 8, 8, -100, 100);
  const Tensor da = device(a), db = device(b), d = device(c);
  cuda::probe_mma_s8(kPtxContext, data<int8_t>(da), data<int8_t>(db), data<int>(d));
  check_product(16, 8, 32, 32, a, b, c, d);
}
TEST_CASE("PTX: named barriers, one warp arrives and one waits") {
  const auto x = numbers<int32_t>(32, 9, 0, 1000);
  const Tensor from = device(x), to = device(std::vector<int32_t>(32, -1));
  cuda::probe_named_barrier(kPtxContext, data<int>(from), data<int>(to));
  const auto y = values<int32_t>(to);
  for (size_t i = 0; i < 32; ++i) CHECK(y[i] == x[31 - i]);
}
TEST_CASE("PTX: TMA, mbarrier and wgmma, on GPUs of compute capability 9.0") {
  const auto a = numbers<bf16>(64 * 64, 10, -8, 8), b = numbers<bf16>(64 * 64, 11, -8, 8);
  const auto c = numbers<float>(64 * 64, 12, -100, 100);
  const Tensor da = device(a), db = device(b), d = device(c);
  if (!cuda::probe_hopper(kPtxContext, data<bf16>(da), data<bf16>(db), data<float>(d))) {
    MESSAGE("not of compute capability 9.0: no TMA, no wgmma");
    return;
  }
  check_product(64, 64, 64, 64, a, b, c, d);
}
TEST_CASE("PTX: TMA and wgmma of int8, on GPUs of compute capability 9.0") {
  constexpr int64_t kStride = 144;
  const auto a = numbers<int8_t>(64 * kStride, 13, -128, 128), b = numbers<int8_t>(256 * kStride, 14, -128, 128);
  const auto c = numbers<int32_t>(64 * 256, 15, -100, 100);
  const Tensor da = device(a), db = device(b), d = device(c);
  if (!cuda::probe_hopper_s8(kPtxContext, data<int8_t>(da), data<int8_t>(db), kStride, data<int>(d))) {
    MESSAGE("not of compute capability 9.0: no TMA, no wgmma");
    return;
  }
  check_product(64, 256, 128, kStride, a, b, c, d);
}
TEST_CASE("PTX: reciprocals are rounded to nearest, and f16 becomes f32") {
  std::vector<float> x(100'000);
  std::vector<f16> h(x.size());
  Rng rng{16};
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(1 + float(rng.uniform()), int(i % 200) - 100) * (i % 3 == 0 ? -1.0f : 1.0f);
    h[i].bits = uint16_t(i);
  }
  for (int i = 0; i < 1000; ++i) x[size_t(i)] = std::ldexp(2 - std::ldexp(float(i), -23), i % 200 - 100);
  const Tensor dx = device(x), dh = device(h), dy = device(x), dz = device(x);
  cuda::probe_scalars(kPtxContext, data<float>(dx), data<float>(dy), data<f16>(dh), data<float>(dz), int64_t(x.size()));
  const auto y = values(dy), z = values(dz);
  size_t wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    wrong += y[i] != 1.0f / x[i];
    wrong += z[i] != float(h[i]) && !(std::isnan(z[i]) && std::isnan(float(h[i])));
  }
  CHECK(wrong == 0);
}
TEST_CASE("PTX: approximations of 1 / x and 2^x are within 2 ulp of normal results, 0 of smaller ones") {
  std::vector<float> x;
  Rng rng{17};
  for (int i = 0; i < 20'000; ++i) {
    x.push_back(std::ldexp(1 + float(rng.uniform()), i % 254 - 126) * (i % 3 == 0 ? -1.0f : 1.0f));
    x.push_back(-140 + 280 * float(rng.uniform()));
  }
  for (const float special : {0.0f, -0.0f, kInf, -kInf}) x.push_back(special);
  const Tensor dx = device(x), dy = device(x), dz = device(x);
  cuda::probe_approximations(kPtxContext, data<float>(dx), data<float>(dy), data<float>(dz), int64_t(x.size()));
  const auto near = [](float got, double exact) {
    if (std::fabs(exact) < 0x1p-125) return std::fabs(double(got)) <= std::fabs(exact) * 1.000001;  // 0 passes too
    return exact > 3.4e38 || exact < -3.4e38 ? std::isinf(got) || std::fabs(got) > 3.3e38f
                                             : std::fabs(got / exact - 1) <= 0x1p-22;
  };
  const auto y = values(dy), z = values(dz);
  size_t wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) wrong += !near(y[i], 1 / double(x[i])) + !near(z[i], std::exp2(double(x[i])));
  CHECK(wrong == 0);
}
