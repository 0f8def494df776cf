// 8-bit floats on Device::cuda(): the bits of the CPU, at every form of the kernels, and what is said of values that
// are not finite, and when. Products and layers of them.
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/cuda/gemm/gemm_fp8.h>
#include <tapegrad/ops/ops.h>

#include <cmath>
#include <limits>
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/cublaslt.h>
#endif

#include "support/helpers.h"
#include "support/on_cuda.h"

using namespace tg;
namespace {
constexpr DType kInputs[] = {DType::f32, DType::bf16, DType::f16};
constexpr Fp8Format kFormats[] = {Fp8Format::e4m3, Fp8Format::e5m2};
// Error of sums in tensor cores of 8-bit floats, which keep some 14 bits (gemm_fp8.h); the emulator keeps all.
#ifdef TG_CUDA_EMULATED
constexpr double kKept = 2e-6;
#else
constexpr double kKept = 1e-3;
#endif

// Values over many binades, with rows of zeros, of denormals, and the largest in the last place; some are -0.
Tensor some(const Shape& s, uint64_t seed) {
  Rng rng{seed};
  std::vector<float> v(size_t(s.product()));
  const size_t n = s.size() ? size_t(s.back()) : 1;
  for (size_t i = 0; i < v.size(); ++i) {
    const size_t row = i / std::max<size_t>(n, 1);
    v[i] = float(rng.uniform()) * 2 - 1;
    if (i % 7 == 2) v[i] *= std::ldexp(1.0f, -int(i % 29));
    if (i % 11 == 3) v[i] = -0.0f;
    if (row % 5 == 1) v[i] *= 0;
    if (row % 5 == 2) v[i] *= std::ldexp(1.0f, -130 - int(row % 4) * 5);
    if (row % 5 == 3) v[i] *= 1000;
    if (row % 5 == 4) v[i] = i % n == n - 1 ? -3 : v[i];
  }
  return tensor(v, s);
}
void expect_same(const Tensor& gpu, const Tensor& cpu) {
  CHECK(gpu.device() == kGpu);
  CHECK(gpu.dtype() == cpu.dtype());
  CHECK(gpu.shape() == cpu.shape());
  CHECK(bits_of(gpu) == bits_of(cpu));
}
void expect_same(const QuantizedFp8& gpu, const QuantizedFp8& cpu) {
  expect_same(gpu.codes, cpu.codes);
  expect_same(gpu.absmax, cpu.absmax);
}
void expect_both_same(const Tensor& x, const Tensor& y) {  // y: x on the device
  for (const Fp8Format f : kFormats) {
    CAPTURE(name_of(f));
    expect_same(quantize_fp8(y, f), quantize_fp8(x, f));
  }
}
QuantizedFp8 there(const QuantizedFp8& q) { return {q.codes.to(kGpu), q.absmax.to(kGpu), q.format}; }
}  // namespace

TEST_CASE("8-bit floats on the device: every dtype, layout and format, eager and lazy") {
  for (const Shape& s : {Shape{7, 33}, Shape{1, 1}, Shape{130, 72}, Shape{5, 1}, Shape{1, 257}, Shape{2, 3, 8}})
    for (const DType t : kInputs)
      for (const Store how : kStores) {
        CAPTURE(s);
        CAPTURE(name_of(t));
        CAPTURE(int(how));
        const Tensor x = some(s, 3).to(t);
        expect_both_same(x, stored(x.to(kGpu), how));
      }
  const Tensor x = some({20, 40}, 4);
  const QuantizedFp8 cpu = quantize_fp8(x);
  LazyScope lazy;
  expect_same(quantize_fp8(x.to(kGpu)), cpu);
}
TEST_CASE("8-bit floats of rows on the device: at every length of rows, which begin where they may") {
  for (const int64_t n : {8, 520, 2056, 8200, 32776, 250, 257, 4099})
    for (const DType t : kInputs) {
      CAPTURE(n);
      CAPTURE(name_of(t));
      const Tensor x = random({3, n}, 5).to(t), y = x.to(kGpu);
      expect_both_same(x, y);
      expect_both_same(slice(x, 1, 1, n), slice(y, 1, 1, n));
    }
  const Tensor x = some({2, 3, 5, 16}, 6), y = x.to(kGpu);
  for (const int64_t d : {0, 1, 2}) expect_both_same(transpose(x, d, d + 1), transpose(y, d, d + 1));
  expect_both_same(tensor<float>({-2.5f}, {1}), tensor<float>({-2.5f}, {1}).to(kGpu));
}
TEST_CASE("8-bit floats of columns on the device: several tiles, whole and in part") {
  for (const Shape& s : {Shape{300, 160}, Shape{1200, 16}, Shape{2, 1100}, Shape{16, 530}, Shape{129, 257}})
    for (const DType t : kInputs) {
      CAPTURE(s);
      CAPTURE(name_of(t));
      const Tensor x = transpose(some({s[1], s[0]}, 7).to(t), 0, 1).contiguous(), y = x.to(kGpu);
      expect_both_same(transpose(x, 0, 1), transpose(y, 0, 1));
      expect_both_same(transpose(slice(x, 1, 1, s[1]), 0, 1), transpose(slice(y, 1, 1, s[1]), 0, 1));
    }
}
TEST_CASE("8-bit floats at the edge of the next on the device, for scales of every binade") {
  // Codes of either format meet at sixteenths of a power of two: those of the smallest twelve powers.
  std::vector<float> v;
  Rng rng{8};
  constexpr int kSteps = 2;
  for (int e = -149; e <= 127; e += 3) {
    const float absmax = std::ldexp(e < -126 ? 1.0f : 1 + float(rng.uniform()), e);
    v.push_back(absmax);
    for (const float largest : {448.0f, 57344.0f})
      for (int k = 0; k < 16 * 12; ++k) {
        const double size = std::ldexp(1 + k % 16 / 16.0, k / 16 - (largest == 448 ? 11 : 18));
        float x = float(size / double(largest) * double(absmax));
        for (int i = 0; i < kSteps; ++i) x = std::nextafter(x, 0.0f);
        for (int i = -kSteps; i <= kSteps; ++i, x = std::nextafter(x, absmax)) v.push_back(i % 2 ? -x : x);
      }
  }
  const int64_t n = 1 + 2 * 16 * 12 * (2 * kSteps + 1);
  const Tensor x = tensor(v, {int64_t(v.size()) / n, n});
  expect_both_same(x, x.to(kGpu));
  const Tensor columns = transpose(x, 0, 1).contiguous();
  expect_both_same(transpose(columns, 0, 1), transpose(columns.to(kGpu), 0, 1));
}
TEST_CASE("8-bit floats of nothing on the device") {
  for (const Shape& s : {Shape{0, 4}, Shape{3, 0}, Shape{0, 0}, Shape{0}}) {
    CAPTURE(s);
    const Tensor x = filled<float>(s, 1);
    expect_both_same(x, x.to(kGpu));
    if (s.size() == 2) expect_both_same(transpose(x, 0, 1), transpose(x.to(kGpu), 0, 1));
    const QuantizedFp8 q = quantize_fp8(x);
    expect_same(dequantize_fp8(there(q)), dequantize_fp8(q));
  }
}
TEST_CASE("what is not finite is named at the next read, with the words of the CPU, and the device goes on") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Store how : kStores)
    for (const DType t : kInputs)
      for (const float bad : {inf, -inf, nan}) {
        CAPTURE(int(how));
        CAPTURE(name_of(t));
        CAPTURE(bad);
        std::vector<float> v(size_t(150 * 70), 0.5f);
        v[size_t(17 * 70 + 41)] = bad, v[size_t(133 * 70 + 2)] = nan;
        const Tensor x = tensor(v, {150, 70}).to(t);
        const std::string expected = error_of([&] { quantize_fp8(x); });
        CHECK(has(expected, "(17, 41)"));
        const Tensor q = quantize_fp8(stored(x.to(kGpu), how)).codes;  // says nothing yet
        const std::string got = error_of([&] { values<uint8_t>(q); });
        const auto at = [](const std::string& s) { return s.substr(s.find("and its element")); };
        REQUIRE(has(got, "and its element"));
        CHECK(at(got) == at(expected));
        CHECK(got.substr(0, got.find(']')) == expected.substr(0, expected.find(']')));
      }
  const Tensor x = some({40, 40}, 9);
  expect_both_same(x, x.to(kGpu));
}
TEST_CASE("values of 8-bit floats on the device: every code, dtype and layout, and any magnitude") {
  for (const Shape& s : {Shape{300, 256}, Shape{7, 33}, Shape{2, 3, 8}, Shape{9}})
    for (const DType t : kInputs)
      for (const Fp8Format f : kFormats) {
        CAPTURE(s);
        CAPTURE(name_of(t));
        CAPTURE(name_of(f));
        Rng rng{10};
        const Shape rows(s.begin(), s.end() - 1);
        std::vector<float> a(size_t(rows.product()));
        for (size_t i = 0; i < a.size(); ++i) a[i] = std::ldexp(1 + float(rng.uniform()), int(i) % 277 - 149);
        std::vector<uint8_t> codes(size_t(s.product()));
        for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(i * 5 + i / 256);
        const Tensor q = tensor(codes, s), absmax = tensor(a, rows);
        const Tensor cpu = dequantize_fp8({q, absmax, f}, t);
        for (const Store how : kStores)
          expect_same(dequantize_fp8({stored(q.to(kGpu), how), stored(absmax.to(kGpu), how), f}, t), cpu);
      }
}
TEST_CASE("products of 8-bit floats on the device: near those of the CPU, by the library where it has them") {
  struct {
    int64_t m, n, k;
    bool fits;  // the library
  } const sizes[] = {{9, 70, 40, false},    {64, 80, 128, true}, {20, 48, 272, true}, {64, 80, 120, false},
                     {64, 84, 128, false},  {6, 16, 16, false},  {1, 4, 17, false},   {3, 0, 8, false},
                     {16388, 16, 16, true}, {16387, 4, 4, false}};
  for (const auto& [fx, fw] : {std::pair(Fp8Format::e4m3, Fp8Format::e4m3),
                               {Fp8Format::e5m2, Fp8Format::e4m3},
                               {Fp8Format::e4m3, Fp8Format::e5m2}})
    for (const auto& [m, n, k, fits] : sizes)
      for (const DType t : kInputs) {
        CAPTURE(m);
        CAPTURE(n);
        CAPTURE(k);
        CAPTURE(name_of(t));
        CAPTURE(name_of(fx));
        const QuantizedFp8 x = quantize_fp8(random({m, k}, 16), fx), w = quantize_fp8(random({n, k}, 17), fw);
        const Tensor b = random({n}, 18), none = fp8_linear(x, w, {}, t), all = fp8_linear(x, w, b, t);
        [[maybe_unused]] const auto before = cuda::gemm_stats().products;
        const Tensor y = fp8_linear(there(x), there(w), {}, t), z = fp8_linear(there(x), there(w), b.to(kGpu), t);
        CHECK(y.dtype() == t);
        CHECK(y.shape() == none.shape());
        const double sums = fits ? kKept : 2e-6, bound = sums + (t == DType::f32 ? 0 : t == DType::f16 ? 1e-3 : 8e-3);
        CHECK(distance(y.to(DType::f32), none.to(DType::f32)) <= bound);
        CHECK(distance(z.to(DType::f32), all.to(DType::f32)) <= bound);
#ifdef TG_CUDA_EMULATED  // a GPU may be another, or its library older
        CHECK((cuda::gemm_stats().products == before) == (fits || n == 0));
#endif
      }
  // Nothing to sum; rows of codes that begin anywhere; and codes that lie in columns.
  const QuantizedFp8 none = quantize_fp8(filled<float>({3, 0}, 1)), weights = quantize_fp8(filled<float>({5, 0}, 1));
  expect_same(fp8_linear(there(none), there(weights), random({5}, 19).to(kGpu)),
              fp8_linear(none, weights, random({5}, 19)));
  const QuantizedFp8 x = quantize_fp8(random({16, 32}, 20)), w = quantize_fp8(random({32, 32}, 21));
  for (const Store how : kStores) {
    CAPTURE(int(how));
    const QuantizedFp8 a{stored(x.codes.to(kGpu), how), stored(x.absmax.to(kGpu), how)},
        b{stored(w.codes.to(kGpu), how), stored(w.absmax.to(kGpu), how)};
    CHECK(distance(fp8_linear(a, b), fp8_linear(x, w)) <= kKept);
  }
  const Tensor flat = reshape(x.codes, {16 * 32}), shifted = concat({filled<uint8_t>({1}, 0), flat}, 0);
  const Tensor codes = reshape(slice(shifted.to(kGpu), 0, 1, 16 * 32 + 1), {16, 32});
  CHECK(distance(fp8_linear({codes, x.absmax.to(kGpu)}, there(w)), fp8_linear(x, w)) <= 2e-6);
}
#ifdef TG_CUDA_EMULATED
TEST_CASE("products of 8-bit floats that the library refuses: made in TF32, and counted") {
  const QuantizedFp8 x = quantize_fp8(random({12, 48}, 22)), w = quantize_fp8(random({80, 48}, 23));
  const Tensor want = fp8_linear(x, w);
  const uint64_t before = cuda::fp8_refusals();
  simt::lt::set_reductions(0);
  for (int i = 0; i < 2; ++i) CHECK(distance(fp8_linear(there(x), there(w)), want) <= 2e-6);
  simt::lt::set_reductions(CUBLASLT_REDUCTION_SCHEME_MASK);
  CHECK(cuda::fp8_refusals() == before + 2);
}
#endif
TEST_CASE("layers of 8-bit floats on the device: result and gradients in both modes, and lazily the same bits") {
  for (const SwitchBackMode mode : {SwitchBackMode::fp8, SwitchBackMode::fp8_e4m3})
    for (const DType t : kInputs)
      for (const Shape& s : {Shape{3, 5, 83}, Shape{130, 64}}) {
        CAPTURE(int(mode));
        CAPTURE(name_of(t));
        CAPTURE(s);
        const int64_t k = s.back(), n = k == 83 ? 332 : 80;
        const auto run = [&](Device d, bool lazy) {
          const Mode scope(lazy);
          const Tensor x = random(s, 21).to(t).to(d).requires_grad_(),
                       w = random({n, k}, 22).to(t).to(d).requires_grad_();
          const Tensor bias = random({n}, 23).to(t).to(d).requires_grad_();
          const Tensor y = switchback_linear(x, w, bias, mode);
          const auto g = backward(y, random(y.shape(), 24).to(t).to(d));
          Tensors r{y.detach(), g[x], g[w], g[bias]};
          evaluate(r);
          return r;
        };
        const Tensors gpu = run(kGpu, false), cpu = run(Device::cpu(), false), lazy = run(kGpu, true);
        for (size_t i = 0; i < gpu.size(); ++i) {
          CAPTURE(i);
          CHECK(bits_of(gpu[i]) == bits_of(lazy[i]));
          CHECK(distance(gpu[i].to(DType::f32), cpu[i].to(DType::f32)) <= (t == DType::f32 ? 1e-5 : 1e-2));
        }
      }
}
