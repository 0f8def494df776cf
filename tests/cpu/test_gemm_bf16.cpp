// Each path of this machine (TG_BF16): against f64, independence of rows and threads, non-finite values, refusals of
// TG_BF16.
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/matmul.h>

#include "support/effort.h"
#include "support/helpers.h"
#include "support/paths.h"
#include "support/threads.h"

using namespace tg;
using cpu::Bf16Path;

namespace {
template <class F> void for_bf16_paths(F&& f) {
  NoGradScope off;
  tg::for_each_path(cpu::kBf16Paths, f);
}
Tensor random_bf16(const Shape& s, uint64_t seed) { return random(s, seed).to(DType::bf16); }

// Largest error relative to the rounding of results to bf16 and of f32 sums.
double worst(const Tensor& y, const Tensor& a, const Tensor& b, const Tensor& bias = {}) {
  const Tensor wide_a = a.to(DType::f64), wide_b = b.to(DType::f64);
  Tensor exact = matmul(wide_a, wide_b), scale = matmul(abs(wide_a), abs(wide_b));
  if (bias) exact = exact + bias.to(DType::f64), scale = scale + abs(bias.to(DType::f64));
  const std::vector<float> got = values(y.to(DType::f32));
  const std::vector<double> want = values<double>(exact), most = values<double>(scale);
  CHECK(got.size() == want.size());
  double w = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(double(got[i]) - want[i]);
    if (error > 0 || std::isnan(error)) w = std::max(w, error / (std::abs(want[i]) / 256 + 1e-5 * most[i]));
  }
  return w;
}
Tensor part(const Tensor& t, int64_t i) {
  return reshape(slice(t, 0, i, i + 1), Shape(t.shape().begin() + 1, t.shape().end()));
}
// False for the baseline's f32, by Eigen.
bool rows_alone(Bf16Path path) { return path != Bf16Path::f32 || tg::detail::kernel_level(Backend::cpu) >= 3; }
}  // namespace

TEST_CASE("bf16 products of many sizes and layouts against f64; a row alone has the same bits") {
  for_bf16_paths([](Bf16Path path) {
    for (const int64_t m : in_turns<int64_t>({1, 7, 16, 17, 33, 70}, 3))
      for (const int64_t n : {1, 5, 16, 31, 32, 50, 100})
        for (const int64_t k : {1, 2, 31, 32, 65, 300}) {
          const Tensor a = random_bf16({m, k}, uint64_t(m)), b = random_bf16({k, n}, uint64_t(n + k));
          for (const Store of_a : {Store::contiguous, Store::transposed, Store::sliced, Store::strided})
            for (const Store of_b : {Store::contiguous, Store::transposed, Store::strided}) {
              if (of_a == Store::strided && of_b == Store::transposed) continue;
              const Tensor x = stored(a, of_a), w = stored(b, of_b), y = matmul(x, w);
              CAPTURE_ALL(m, n, k, int(of_a), int(of_b));
              CHECK(worst(y, a, b) <= 1);
              if (!rows_alone(path)) continue;
              for (const int64_t r : {m / 2, m - 1})
                CHECK(bits_of(matmul(slice(x, 0, r, r + 1), w)) == bits_of(slice(y, 0, r, r + 1)));
            }
        }
  });
}

TEST_CASE("large bf16 products: against f64, the same bits with one thread and with all, a row alone") {
  struct Size {
    int64_t m, n, k;
  };
  for_bf16_paths([](Bf16Path path) {
    for (const Size& s : {Size{300, 500, 400}, Size{40, 3000, 64}, Size{129, 260, 3500}, Size{4, 1100, 900},
                          Size{1000, 20, 257}, Size{66, 66, 7001}, Size{33, 520, 8200}}) {
      if (!small_enough(s.m, s.n, s.k)) continue;
      CAPTURE_ALL(s.m, s.n, s.k);
      const Tensor a = random_bf16({s.m, s.k}, 1), b = random_bf16({s.k, s.n}, 2);
      for (const bool down : {false, true})
        for (const bool columns : {false, true}) {
          CAPTURE_ALL(down, columns);
          const Tensor x = down ? stored(a, Store::transposed) : a, w = columns ? stored(b, Store::transposed) : b;
          const auto run = [&](int threads) {
            const ThreadsScope some(threads);
            return matmul(x, w);
          };
          const Tensor y = run(2);
          CHECK(worst(y, a, b) <= 1);
          CHECK(bits_of(run(1)) == bits_of(y));
          if (!rows_alone(path)) continue;
          for (const int64_t r : {int64_t(0), s.m - 1})
            CHECK(bits_of(matmul(slice(x, 0, r, r + 1), w)) == bits_of(slice(y, 0, r, r + 1)));
        }
    }
  });
}

TEST_CASE("bf16 products of a batch: small and large matrices, broadcast, transposed by option") {
  for_bf16_paths([](Bf16Path) {
    for (const int64_t side : {9, 130}) {
      const Tensor a = random_bf16({3, 2, side, 40}, 5), b = random_bf16({2, 40, side + 1}, 6);
      const Tensor y = matmul(a, b);
      CHECK(worst(y, a, b) <= 1);
      for (int64_t i = 0; i < 3; ++i)
        for (int64_t j = 0; j < 2; ++j)
          CHECK(bits_of(matmul(part(part(a, i), j), part(b, j))) == bits_of(part(part(y, i), j)));
      const Tensor at = stored(a, Store::transposed), bt = stored(b, Store::transposed);
      CHECK(worst(matmul(transpose(at, -1, -2), transpose(bt, -1, -2), {.trans_a = true, .trans_b = true}), a, b) <= 1);
    }
  });
}

TEST_CASE("bf16 linear: the bias is added before the one rounding; odd layouts of x; sizes of 0") {
  for_bf16_paths([](Bf16Path) {
    const Tensor x = random_bf16({5, 14, 72}, 1), w = random_bf16({90, 72}, 2), bias = random_bf16({90}, 3);
    const Tensor wt = transpose(w, 0, 1);
    CHECK(worst(linear(x, w), x, wt) <= 1);
    CHECK(worst(linear(x, w, bias), x, wt, bias) <= 1);
    CHECK(bits_of(linear(stored(x, Store::strided), w, bias)) == bits_of(linear(x, w, bias)));
    const Tensor swapped = transpose(x, 0, 1);  // rows at uneven steps
    CHECK(bits_of(linear(swapped, w, bias)) == bits_of(linear(swapped.contiguous(), w, bias)));
    const Tensor none = linear(random_bf16({3, 0}, 1), random_bf16({90, 0}, 1), bias);
    for (int64_t i = 0; i < 3; ++i) CHECK(bits_of(part(none, i)) == bits_of(bias));
    CHECK(matmul(random_bf16({0, 8}, 1), random_bf16({8, 4}, 2)).numel() == 0);
    CHECK(matmul(random_bf16({4, 8}, 1), random_bf16({8, 0}, 2)).numel() == 0);
    for (const float y : values(matmul(random_bf16({2, 0}, 1), random_bf16({0, 3}, 2)).to(DType::f32))) CHECK(y == 0);
  });
}

TEST_CASE("bf16 products: what is not finite stays in its rows and columns, and sums beyond bf16 are infinite") {
  for_bf16_paths([](Bf16Path) {
    constexpr int64_t kSize = 45;
    std::vector<float> x(kSize * kSize, 1.0f);
    x[2 * kSize + 44] = kInf, x[20 * kSize + 3] = -kInf, x[30 * kSize + 7] = std::nanf("");
    x[40 * kSize] = kInf, x[40 * kSize + 1] = -kInf;
    for (int64_t k = 0; k < kSize; ++k) x[size_t(41 * kSize + k)] = 3e38f;
    const Tensor a = tensor<float>(x, {kSize, kSize}).to(DType::bf16),
                 ones = filled({kSize, kSize}, 1.0f).to(DType::bf16);
    const auto check = [&](const Tensor& y, bool of_rows) {
      const std::vector<float> got = values((of_rows ? y : transpose(y, 0, 1)).to(DType::f32));
      for (int64_t i = 0; i < kSize; ++i)
        for (int64_t j = 0; j < kSize; ++j) {
          const float c = got[size_t(i * kSize + j)];
          CAPTURE_ALL(i, j);
          if (i == 30 || i == 40)
            CHECK(std::isnan(c));
          else
            CHECK(c == (i == 2 || i == 41 ? kInf : i == 20 ? -kInf : float(kSize)));
        }
    };
    check(matmul(a, ones), true);
    check(matmul(ones, transpose(a, 0, 1)), false);
  });
}

TEST_CASE("TG_BF16 names a way that this machine has, or products and describe() refuse") {
  NoGradScope off;
  const EmulatedAmx amx;
  const Tensor a = random_bf16({2, 2}, 1);
  const auto error = [&](const char* value) {
    const WithEnv env("TG_BF16", value);
    return error_of([&] { eval({matmul(a, a)}); });
  };
  CHECK(error("f32") == "no error");
  for (const char* wrong : {"avx", "", "AMX"}) {
    const std::string text = error(wrong);
    CHECK_HAS(
        text,
        fmt::format(
            "[matmul] TG_BF16 is '{}'. It must name a path for bf16 GEMM: f32, avx512 and amx; this machine has f32",
            wrong),
        "Change or unset it.");
  }
  for (const Bf16Path path : {Bf16Path::avx512, Bf16Path::amx}) {
    const std::string name(name_of(path));
    CHECK((error(name.c_str()) == "no error") == has(path));
    if (!has(path)) continue;
    const WithEnv env("TG_BF16", name);
    CHECK_HAS(detail::runtime_of(Device::cpu()).describe(0),
              path == Bf16Path::amx ? ", bf16 by AMX" : ", bf16 by AVX512_BF16");
  }
  const WithEnv env("TG_BF16", "f32");
  CHECK_HAS(detail::runtime_of(Device::cpu()).describe(0), ", bf16 by f32");
}
