// MatmulPrecision::high and medium on each path of this machine (TG_BF16): against double and `highest`, special
// values, threads and layouts, gradients.
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/ops/ops.h>

#include <array>
#include <cmath>

#include "support/effort.h"
#include "support/helpers.h"
#include "support/paths.h"
#include "support/threads.h"

using namespace tg;

namespace {
constexpr auto kHighest = MatmulPrecision::highest, kHigh = MatmulPrecision::high, kMedium = MatmulPrecision::medium;

template <class F> void for_parts_paths(F&& f) {
  tg::for_each_path(std::array{cpu::Bf16Path::avx512, cpu::Bf16Path::amx}, [&](cpu::Bf16Path) { f(); });
}
Tensor narrow(const Tensor& x) { return x.to(DType::bf16).to(DType::f32); }

struct Errors {  // relative to sums of |a b|
  double rms = 0, most = 0;
};
Errors errors_of(const Tensor& y, const Tensor& a, const Tensor& b) {
  const Tensor wide_a = a.to(DType::f64), wide_b = b.to(DType::f64);
  const std::vector<float> got = values(y);
  const auto want = values<double>(matmul(wide_a, wide_b)), scale = values<double>(matmul(abs(wide_a), abs(wide_b)));
  Errors e;
  for (size_t i = 0; i < want.size(); ++i) {
    const double share = std::abs(double(got[i]) - want[i]) / scale[i];
    e.rms += share * share / double(want.size());
    e.most = std::max(e.most, share);
  }
  e.rms = std::sqrt(e.rms);
  return e;
}
Tensor gaussian(const Shape& s, uint64_t seed) {
  Rng rng{seed};
  return randn(s, rng);
}
std::pair<Tensor, Tensor> data(const std::string& kind, int64_t m, int64_t n, int64_t k) {
  const Tensor a = gaussian({m, k}, 1), b = gaussian({k, n}, 2);
  if (kind == "wide exponents")
    return {a * exp(random({m, k}, 3, -13.8, 13.8)), b * exp(random({k, n}, 4, -13.8, 13.8))};
  if (kind == "outlying channels") {
    const Tensor channels = concat({filled<float>({4}, 40), filled<float>({k - 4}, 1)});
    return {rms_norm(a * exp(gaussian({k}, 5) * 0.5) * channels), b * 0.02};
  }
  if (kind == "positive") return {random({m, k}, 6, 0, 1), random({k, n}, 7, 0, 1)};
  return {a, b};
}
constexpr const char* kKinds[] = {"normal", "wide exponents", "outlying channels", "positive"};
}  // namespace

TEST_CASE("medium: the product of operands rounded to bf16, in all layouts, with one thread and with all") {
  NoGradScope off;
  struct Size {
    int64_t m, n, k;
  };
  for_parts_paths([] {
    for (const Size& s : {Size{130, 100, 90}, Size{17, 400, 257}, Size{65, 33, 3000}, Size{300, 500, 71}}) {
      CAPTURE(s.m);
      const Tensor a = random({s.m, s.k}, 1), b = random({s.k, s.n}, 2);
      for (const Store of_a : kStores)
        for (const Store of_b : kStores) {
          CAPTURE_ALL(int(of_a), int(of_b));
          const Tensor x = stored(a, of_a), w = stored(b, of_b), y = matmul(x, w, {.precision = kMedium});
          CHECK(errors_of(y, narrow(a), narrow(b)).most < 1e-6);
          CHECK(bits_of(y) != bits_of(matmul(x, w)));
          CHECK(bits_of(on_one_thread([&] { return matmul(x, w, {.precision = kMedium}); })) == bits_of(y));
        }
    }
  });
}

TEST_CASE("high: errors are not larger than those of highest, on four kinds of data, in all layouts") {
  NoGradScope off;
  for_parts_paths([] {
    for (const char* kind : kKinds)
      for (const int64_t k : in_turns<int64_t>({70, 768, 3072})) {
        if (EmulatedAmx::running() && k > 768) continue;
        CAPTURE_ALL(kind, k);
        const auto [a, b] = data(kind, 190, 150, k);
        const Errors highest = errors_of(matmul(a, b), a, b);
        const Tensor y = matmul(a, b, {.precision = kHigh});
        const Errors high = errors_of(y, a, b);
        CHECK(high.rms <= highest.rms);
        CHECK(high.most <= highest.most);
        CHECK(bits_of(y) != bits_of(matmul(a, b)));
        for (const Store of_a : {Store::transposed, Store::strided})
          for (const Store of_b : {Store::transposed, Store::strided})
            CHECK(bits_of(matmul(stored(a, of_a), stored(b, of_b), {.precision = kHigh})) == bits_of(y));
        CHECK(bits_of(on_one_thread([&, &a = a, &b = b] { return matmul(a, b, {.precision = kHigh}); })) == bits_of(y));
      }
  });
}

TEST_CASE("high: what is infinite, NaN, very large or very small is as highest has it, its rows alone") {
  NoGradScope off;
  constexpr int64_t kM = 70, kN = 150, kK = 200;
  for_parts_paths([] {
    const Tensor a = gaussian({kM, kK}, 1), b = gaussian({kK, kN}, 2), clean = matmul(a, b, {.precision = kHigh});
    const auto with = [&](double factor, std::optional<float> element) {
      auto v = values(a);
      for (int64_t t = 0; t < kK; ++t) v[size_t(33 * kK + t)] *= float(factor);
      if (element) v[33 * kK + 7] = *element;
      return tensor<float>(v, {kM, kK});
    };
    const auto check = [&](const Tensor& x) {
      const Tensor high = matmul(x, b, {.precision = kHigh}), highest = matmul(x, b);
      CHECK(bits_of(slice(high, 0, 33, 34)) == bits_of(slice(highest, 0, 33, 34)));
      CHECK(bits_of(slice(high, 0, 0, 33)) == bits_of(slice(clean, 0, 0, 33)));
      CHECK(bits_of(slice(high, 0, 34, kM)) == bits_of(slice(clean, 0, 34, kM)));
      const Tensor bt = transpose(b, 0, 1), xt = transpose(x, 0, 1);
      CHECK(bits_of(matmul(bt, xt, {.precision = kHigh})) == bits_of(matmul(bt, xt)));
    };
    for (const float element : {kInf, -kInf, std::nanf(""), 3.4e38f, -3.4e38f}) {
      CAPTURE(element);
      check(with(1, element));
    }
    for (const double factor : {1e-30, 1e-36, 1e-40, 1e-42, 1e-45}) {
      CAPTURE(factor);
      check(with(factor, {}));
    }
    // Denormal or overflowing products of normal operands.
    for (const auto& [of_a, of_b] : {std::pair(1e-20, 1e-20), std::pair(1e25, 1e15)})
      CHECK(bits_of(matmul(a * of_a, b * of_b, {.precision = kHigh})) == bits_of(matmul(a * of_a, b * of_b)));
    // Zeros are not small numbers.
    const Tensor mask = (random({kM, 1}, 3, 0, 1) > 0.5).to(DType::f32);
    CHECK(values(matmul(a * mask, b, {.precision = kHigh})) == values(clean * mask));
  });
}

TEST_CASE("high and medium: linear with bias and activation, batches, few rows, sizes of 0") {
  NoGradScope off;
  for_parts_paths([] {
    for (const MatmulPrecision p : {kHigh, kMedium}) {
      const MatmulPrecisionScope scope(p);
      const auto product = [&](const Tensor& a, const Tensor& b) { return matmul(a, b, {.precision = p}); };
      const Tensor x = gaussian({5, 30, 72}, 1), w = gaussian({130, 72}, 2), bias = gaussian({130}, 3);
      const Tensor flat = product(reshape(x, {150, 72}), transpose(w, 0, 1));
      CHECK(bits_of(linear(x, w)) == bits_of(flat));
      CHECK(bits_of(linear(x, w, bias)) == bits_of(flat + bias));
      const Tensor swapped = transpose(x, 0, 1);
      CHECK(bits_of(linear(swapped, w)) == bits_of(linear(swapped.contiguous(), w)));
      const Tensor a = gaussian({3, 1, 120, 110}, 4), b = gaussian({2, 110, 100}, 5), y = matmul(a, b);
      for (int64_t i = 0; i < 3; ++i)
        for (int64_t j = 0; j < 2; ++j)
          CHECK(
              bits_of(slice(slice(y, 0, i, i + 1), 1, j, j + 1)) ==
              bits_of(product(reshape(slice(a, 0, i, i + 1), {120, 110}), reshape(slice(b, 0, j, j + 1), {110, 100}))));
      const Tensor few = gaussian({4, 600}, 6), many = gaussian({600, 700}, 7);
      CHECK(bits_of(matmul(few, many)) == bits_of(matmul(few, many, {.precision = kHighest})));
      CHECK(matmul(gaussian({0, 8}, 1), gaussian({8, 4}, 2)).numel() == 0);
      for (const float z : values(matmul(zeros({200, 0}), zeros({0, 300})))) CHECK(z == 0);
    }
  });
}

TEST_CASE("gradients have the precision of their product, whenever they run: eager, lazy, compiled") {
  for_parts_paths([] {
    for (const MatmulPrecision p : {kHigh, kMedium}) {
      const Tensor x = gaussian({120, 130}, 1).requires_grad_(), w = gaussian({140, 130}, 2).requires_grad_();
      const Tensor dy = gaussian({120, 140}, 3);
      const auto run = [&](Inputs in) -> std::vector<Tensor> {
        Tensor y;
        {
          const MatmulPrecisionScope scope(p);
          y = silu(linear(in[0], in[1]));
        }
        const GradMap g = backward(y, dy);
        return {y, g[in[0]], g[in[1]]};
      };
      const std::vector<Tensor> eager = run(std::array{x, w});
      const auto lazily = [&] {
        const LazyScope scope;
        const std::vector<Tensor> y = run(std::array{x, w});
        eval(y);
        return y;
      };
      check_same_bits(lazily(), eager);
      const auto compiled = compile(run);
      for (int i = 0; i < 2; ++i) check_same_bits(compiled(std::array{x, w}), eager);
      const Tensor z = matmul(x, w, {.trans_b = true, .precision = p}).detach().requires_grad_();
      const Tensor dz = backward(silu(z), dy)[z];
      CHECK(bits_of(eager[1]) == bits_of(matmul(dz, w, {.precision = p})));
      CHECK(bits_of(eager[2]) == bits_of(matmul(dz, x, {.trans_a = true, .precision = p})));
    }
  });
}

TEST_CASE("without bf16 instructions every precision is highest") {
  NoGradScope off;
  const WithEnv env("TG_BF16", "f32");
  const Tensor a = gaussian({130, 140}, 1), b = gaussian({140, 150}, 2);
  for (const MatmulPrecision p : {kHigh, kMedium})
    CHECK(bits_of(matmul(a, b, {.precision = p})) == bits_of(matmul(a, b)));
}
