#pragma once
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/ops.h>

#include <cmath>

#include "support/files.h"
#include "support/on_cuda.h"

namespace tg {

inline constexpr DType kQuantizable[] = {DType::f32, DType::bf16, DType::f16};

// Rows: signed zeros, denormals, large numbers, the largest in the last place, and halves with the absmax 127, which
// are ties of int8.
inline Tensor many_binades(const Shape& s, uint64_t seed) {
  Rng rng{seed};
  std::vector<float> v(size_t(s.product()));
  const size_t n = s.size() ? size_t(s.back()) : 1;
  for (size_t i = 0; i < v.size(); ++i) {
    const size_t row = i / std::max<size_t>(n, 1);
    const bool last = i % n == n - 1;
    v[i] = float(rng.uniform()) * 2 - 1;
    if (i % 7 == 2) v[i] *= std::ldexp(1.0f, -int(i % 29));
    if (i % 11 == 3) v[i] = -0.0f;
    if (row % 6 == 1) v[i] *= 0;
    if (row % 6 == 2) v[i] *= std::ldexp(1.0f, -130 - int(row % 4) * 5);
    if (row % 6 == 3) v[i] *= 100;
    if (row % 6 == 4 && last) v[i] = -3;
    if (row % 6 == 5) v[i] = last ? 127 : float(int(v[i] * 127)) / 2;
  }
  return tensor(v, s);
}
// (150, 70), finite except the elements (17, 41), `bad`, and (133, 2), NaN.
inline Tensor with_bad(float bad, float other = 0.5f) {
  std::vector<float> v(size_t(150 * 70), 0.5f);
  v[size_t(3 * 70 + 1)] = other, v[size_t(17 * 70 + 41)] = bad, v[size_t(133 * 70 + 2)] = kNan;
  return tensor(v, {150, 70});
}

inline void expect_same(const Tensor& gpu, const Tensor& cpu) {
  CHECK(gpu.device() == kGpu);
  CHECK(gpu.dtype() == cpu.dtype());
  CHECK(gpu.shape() == cpu.shape());
  CHECK(bits_of(gpu) == bits_of(cpu));
}
template <class Q> void expect_same(const Q& gpu, const Q& cpu) {
  expect_same(gpu.values, cpu.values);
  expect_same(gpu.absmax, cpu.absmax);
}
inline Quantized there(const Quantized& q) { return {q.values.to(kGpu), q.absmax.to(kGpu)}; }
inline QuantizedFp8 there(const QuantizedFp8& q) { return {q.values.to(kGpu), q.absmax.to(kGpu), q.format}; }
// The device names a bad element at the next read with the CPU's message, which contains `part`.
inline void expect_named(const std::function<Tensor(const Tensor&)>& codes_of, const Tensor& x, Store how,
                         std::string_view part) {
  const std::string expected = error_of([&] { codes_of(x); });
  CHECK_HAS(expected, part);
  const Tensor q = codes_of(stored(x.to(kGpu), how));
  const std::string got = error_of([&] { bits_of(q); });
  const auto at = [](const std::string& s) { return s.substr(s.find("and its element")); };
  REQUIRE(has(got, "and its element"));
  CHECK(at(got) == at(expected));
  CHECK(got.substr(0, got.find(']')) == expected.substr(0, expected.find(']')));
}

struct Layer {
  Tensor x, w, b, g;  // g: the gradient of y
};
// y, dx, dw, db.
inline std::vector<Tensor> run(const Layer& l,
                               const std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>& f) {
  const Tensor x = l.x.detach().requires_grad_(), w = l.w.detach().requires_grad_(), b = l.b.detach().requires_grad_();
  const Tensor y = f(x, w, b);
  const GradMap g = backward(y, l.g);
  return {y.detach(), g[x], g[w], g[b]};
}
inline std::vector<Tensor> run(const Layer& l, SwitchBackMode mode) {
  return run(l, [mode](auto& x, auto& w, auto& b) { return switchback_linear(x, w, b, mode); });
}
// The exact layer in f64.
inline std::vector<Tensor> run_exact(const Layer& l) {
  return run({wide(l.x), wide(l.w), wide(l.b), wide(l.g)}, [](auto& x, auto& w, auto& b) { return linear(x, w, b); });
}

template <class Quantize, class Linear> void check_extreme_scales(Quantize quantize, Linear product) {
  const Tensor x = random({3, 500}, 5), w = random({7, 500}, 6), usual = product(quantize(x), quantize(w));
  for (const int k : {100, 119, 127}) {
    const double large = std::ldexp(1.0, k), small = std::ldexp(1.0, -90);
    for (const auto& [a, b] : {std::pair(large, small), {small, large}})
      CHECK(distance(product(quantize(x * a), quantize(w * b)), usual * (large * small)) < 1e-6);
  }
}

}  // namespace tg
