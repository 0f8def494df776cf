#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/cuda/gemm/gemm_fp8.h>
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/cublaslt.h>
#endif

#include "support/quantized.h"

using namespace tg;
namespace {
constexpr Fp8Format kFormats[] = {Fp8Format::e4m3, Fp8Format::e5m2};
// fp8 tensor cores accumulate about 14 bits (gemm_fp8.h); the emulator keeps all.
#ifdef TG_CUDA_EMULATED
constexpr double kKept = 2e-6, kInTf32 = 2e-6;
#else
constexpr double kKept = 1e-3, kInTf32 = 1e-5;  // cuBLASLt sums in another order
#endif

void expect_both_same(const Tensor& x, const Tensor& y) {  // y: x on the device
  for (const Fp8Format f : kFormats) {
    CAPTURE(name_of(f));
    expect_same(quantize_fp8(y, f), quantize_fp8(x, f));
  }
}
}  // namespace

TEST_CASE("8-bit floats on the device: every dtype, layout and format, eager and lazy") {
  for (const Shape& s : {Shape{7, 33}, Shape{1, 1}, Shape{130, 72}, Shape{5, 1}, Shape{1, 257}, Shape{2, 3, 8}})
    for (const DType t : kQuantizable)
      for (const Store how : kStores) {
        CAPTURE_ALL(s, name_of(t), int(how));
        const Tensor x = many_binades(s, 3).to(t);
        expect_both_same(x, stored(x.to(kGpu), how));
      }
  const Tensor x = many_binades({20, 40}, 4);
  const QuantizedFp8 cpu = quantize_fp8(x);
  LazyScope lazy;
  expect_same(quantize_fp8(x.to(kGpu)), cpu);
}
TEST_CASE("8-bit floats of rows on the device: at every length of rows, which begin where they may") {
  for (const int64_t n : {8, 520, 2056, 8200, 32776, 250, 257, 4099})
    for (const DType t : kQuantizable) {
      CAPTURE_ALL(n, name_of(t));
      const Tensor x = random({3, n}, 5).to(t), y = x.to(kGpu);
      expect_both_same(x, y);
      expect_both_same(slice(x, 1, 1, n), slice(y, 1, 1, n));
    }
  const Tensor x = many_binades({2, 3, 5, 16}, 6), y = x.to(kGpu);
  for (const int64_t d : {0, 1, 2}) expect_both_same(transpose(x, d, d + 1), transpose(y, d, d + 1));
  expect_both_same(tensor<float>({-2.5f}, {1}), tensor<float>({-2.5f}, {1}).to(kGpu));
}
TEST_CASE("8-bit floats of columns on the device: several tiles, whole and in part") {
  for (const Shape& s : {Shape{300, 160}, Shape{1200, 16}, Shape{2, 1100}, Shape{16, 530}, Shape{129, 257}})
    for (const DType t : kQuantizable) {
      CAPTURE_ALL(s, name_of(t));
      const Tensor x = transpose(many_binades({s[1], s[0]}, 7).to(t), 0, 1).contiguous(), y = x.to(kGpu);
      expect_both_same(transpose(x, 0, 1), transpose(y, 0, 1));
      expect_both_same(transpose(slice(x, 1, 1, s[1]), 0, 1), transpose(slice(y, 1, 1, s[1]), 0, 1));
    }
}
TEST_CASE("8-bit floats at the edge of the next on the device, for scales of every binade") {
  // Both formats meet at sixteenths of the smallest twelve powers of two.
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
  for (const Store how : kStores)
    for (const DType t : kQuantizable)
      for (const float bad : {kInf, -kInf, kNan}) {
        CAPTURE_ALL(int(how), name_of(t), bad);
        expect_named([](const Tensor& x) { return quantize_fp8(x).values; }, with_bad(bad).to(t), how, "(17, 41)");
      }
  const Tensor x = many_binades({40, 40}, 9);
  expect_both_same(x, x.to(kGpu));
}
TEST_CASE("values of 8-bit floats on the device: every code, dtype and layout, and any magnitude") {
  for (const Shape& s : {Shape{300, 256}, Shape{7, 33}, Shape{2, 3, 8}, Shape{9}})
    for (const DType t : kQuantizable)
      for (const Fp8Format f : kFormats) {
        CAPTURE_ALL(s, name_of(t), name_of(f));
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
    bool fits;  // cuBLASLt applies
  } const sizes[] = {{9, 70, 40, false},    {64, 80, 128, true}, {20, 48, 272, true}, {64, 80, 120, false},
                     {64, 84, 128, false},  {6, 16, 16, false},  {1, 4, 17, false},   {3, 0, 8, false},
                     {16388, 16, 16, true}, {16387, 4, 4, false}};
  for (const auto& [fx, fw] : {std::pair(Fp8Format::e4m3, Fp8Format::e4m3),
                               {Fp8Format::e5m2, Fp8Format::e4m3},
                               {Fp8Format::e4m3, Fp8Format::e5m2}})
    for (const auto& [m, n, k, fits] : sizes)
      for (const DType t : kQuantizable) {
        CAPTURE_ALL(m, n, k, name_of(t), name_of(fx));
        const QuantizedFp8 x = quantize_fp8(random({m, k}, 16), fx), w = quantize_fp8(random({n, k}, 17), fw);
        const Tensor b = random({n}, 18), none = fp8_linear(x, w, {}, t), all = fp8_linear(x, w, b, t);
        const auto before = cuda::gemm_stats().products, refusals = cuda::fp8_refusals();
        const Tensor y = fp8_linear(there(x), there(w), {}, t), z = fp8_linear(there(x), there(w), b.to(kGpu), t);
        CHECK(y.dtype() == t);
        CHECK(y.shape() == none.shape());
        const bool taken = fits && cuda::fp8_shape_fits({kGpu, "test"}, m, n, k) && cuda::fp8_refusals() == refusals;
        const double sums = taken ? kKept : kInTf32, bound = sums + (t == DType::f32   ? 0
                                                                     : t == DType::f16 ? 1e-3
                                                                                       : 8e-3);
        CHECK(distance(y.to(DType::f32), none.to(DType::f32)) <= bound);
        CHECK(distance(z.to(DType::f32), all.to(DType::f32)) <= bound);
        CHECK((cuda::gemm_stats().products == before) == (taken || n == 0));
      }
  const QuantizedFp8 none = quantize_fp8(filled<float>({3, 0}, 1)), weights = quantize_fp8(filled<float>({5, 0}, 1));
  expect_same(fp8_linear(there(none), there(weights), random({5}, 19).to(kGpu)),
              fp8_linear(none, weights, random({5}, 19)));
  const QuantizedFp8 x = quantize_fp8(random({16, 32}, 20)), w = quantize_fp8(random({32, 32}, 21));
  for (const Store how : kStores) {
    CAPTURE(int(how));
    const QuantizedFp8 a{stored(x.values.to(kGpu), how), stored(x.absmax.to(kGpu), how)},
        b{stored(w.values.to(kGpu), how), stored(w.absmax.to(kGpu), how)};
    CHECK(distance(fp8_linear(a, b), fp8_linear(x, w)) <= kKept);
  }
  const Tensor flat = reshape(x.values, {16 * 32}), shifted = concat({filled<uint8_t>({1}, 0), flat}, 0);
  const Tensor codes = reshape(slice(shifted.to(kGpu), 0, 1, 16 * 32 + 1), {16, 32});
  CHECK(distance(fp8_linear({codes, x.absmax.to(kGpu)}, there(w)), fp8_linear(x, w)) <= kInTf32);
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
