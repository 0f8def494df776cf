// Rounding errors of long sums must not grow with the number of terms. Equal terms are the worst case: each addition
// rounds in the same direction.
#pragma once
#include "support/helpers.h"

#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/norm.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/softmax.h>

namespace tg {

// x (n, columns): 0.1, or 10^6 and then 0.1.
inline Tensor long_column(int64_t n, int64_t columns, bool one_large, DType d, Device device) {
  std::vector<float> v(size_t(n * columns), 0.1f);
  if (one_large) std::fill_n(v.begin(), columns, 1e6f);
  return tensor(v, {n, columns}).to(d).to(device);
}
inline void check_long_sums(int64_t n, Device device, const std::vector<int64_t>& widths = {1, 2, 33}) {
  const auto sums = [](const Tensor& x) { return std::vector{sum(x), sum(x, {0}), mean(x, {0}), var(x, {0}), var(x)}; };
  // dy is x. Equal normalized rows have a variance far from 0, so rounding of the mean does not count.
  const auto gradients = [](const Tensor& x) {
    const Tensor w = full({x.shape()[1]}, 1, x.dtype(), x.device()).requires_grad_(), b = w.detach().requires_grad_();
    std::vector<float> signs(size_t(x.shape()[1]), 1);
    for (size_t j = 1; j < signs.size(); j += 2) signs[j] = -1;
    const Tensor rows = expand(tensor(signs, {x.shape()[1]}).to(x.dtype()).to(x.device()), x.shape());
    const GradMap g = backward(sum(layer_norm(rows, w, b) * x));
    return std::vector{g[w], g[b]};
  };
  for (const DType d : {DType::f32, DType::bf16})
    for (const bool one_large : {false, true})
      for (const int64_t columns : widths) {
        if (n * columns > int64_t(1) << 25) continue;
        CAPTURE_ALL(d, one_large, columns);
        const Tensor x = long_column(n, columns, one_large, d, device), exact = x.to(DType::f64);
        const double most = d == DType::f32 ? 4e-6 : 4e-3;  // bf16: the result is rounded to 8 bits
        const auto check = [&](const std::vector<Tensor>& got, const std::vector<Tensor>& want, double least) {
          for (size_t k = 0; k < got.size(); ++k) {
            CAPTURE(k);
            const auto a = values<double>(got[k]), b = values<double>(want[k]);
            for (size_t j = 0; j < a.size(); ++j) CHECK(std::abs(a[j] - b[j]) <= most * (std::abs(b[j]) + least));
          }
        };
        check(sums(x), sums(exact), 0.01);  // a variance of 0 next to squares of 0.1
        check(gradients(x), gradients(exact), 1);
      }
}
inline void check_long_rows(int64_t n, Device device) {
  const Tensor x = reshape(long_column(n, 1, false, DType::f32, device), {1, n}), wide = x.to(DType::f64);
  const Tensor y = softmax(x);
  CHECK(distance(y, softmax(wide)) < 4e-6);
  const Tensor z = transpose(long_column(n, 1, true, DType::f32, device), 0, 1).contiguous();
  CHECK(distance(layer_norm(z, {}, {}), layer_norm(z.to(DType::f64), {}, {})) < 1e-5);
  const auto loss = [&](const Tensor& logits) {
    return cross_entropy(logits, tensor(std::vector<int64_t>{1}, {1}).to(device), {.label_smoothing = 0.1});
  };
  for (const Tensor& logits : {x, z}) {
    const double exact = loss(logits.to(DType::f64)).to(DType::f64).item<double>();
    CHECK(std::abs(loss(logits).to(DType::f64).item<double>() - exact) < 4e-6 * std::abs(exact));
  }
  std::vector<float> signs, slopes;  // the signs have variance 1; no correlation
  for (int64_t j = 0; j < n; ++j) signs.push_back(j % 2 ? -1 : 1), slopes.push_back(j % 4 < 2 ? 0.2f : 0.1f);
  const Tensor even = tensor(signs, {1, n}).to(device), slope = tensor(slopes, {1, n}).to(device);
  const auto gradient = [&](const Tensor& from, auto&& f) {
    const Tensor leaf = from.detach().requires_grad_();
    return backward(sum(f(leaf) * slope.to(from.dtype())))[leaf];
  };
  const auto norm = [](const Tensor& t) { return layer_norm(t, {}, {}); };
  const auto log = [](const Tensor& t) { return log_softmax(t); };
  CHECK(distance(gradient(even, norm), gradient(even.to(DType::f64), norm)) < 4e-6);
  CHECK(distance(gradient(even, log), gradient(even.to(DType::f64), log)) < 4e-6);
}

}  // namespace tg
