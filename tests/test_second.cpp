// Second derivatives of every differentiable op case, by central differences of its first gradients.
#include <tapegrad/ops/ops.h>

#include "helpers.h"
#include "op_cases.h"

using namespace tg;
namespace {
// sum of <v[k], r[k]> over the floating tensors of v, with fixed random r; empty when there are none.
Tensor projected(Inputs v, uint64_t seed) {
  Tensor total;
  for (size_t k = 0; k < v.size(); ++k) {
    if (!v[k] || !is_float(v[k].dtype())) continue;
    const Tensor part = sum(v[k] * random<double>(v[k].shape(), seed + k, 0.5, 1.5).to(v[k].dtype()));
    total = total ? total + part.to(DType::f64) : part.to(DType::f64);
  }
  return total;
}
// Of inputs x and weights w of the outputs: a random projection of the gradients of <outputs, w> with respect to x. Its
// own gradient with respect to all of them is what second derivatives are.
Tensor first_gradients(const OpCase& c, const std::vector<Tensor>& all) {
  const Inputs x(all.data(), c.in.size()), w(all.data() + c.in.size(), all.size() - c.in.size());
  const Tensors out = c.fn(x);
  Tensor loss;
  for (size_t k = 0, next = 0; k < out.size(); ++k) {
    if (!is_float(out[k].dtype())) continue;
    const Tensor part = sum(out[k] * w[next++]);
    loss = loss ? loss + part : part;
  }
  const GradMap g = backward(loss, {.create_graph = true});
  std::vector<Tensor> gradients;
  for (auto& t : x) gradients.push_back(g[t]);
  return projected(gradients, 50);
}
std::vector<Tensor> leaves_of(const OpCase& c) {
  std::vector<Tensor> all = make_inputs(c, DType::f64);
  {
    NoGrad off;
    uint64_t seed = 70;
    for (auto& y : c.fn(all))
      if (is_float(y.dtype())) all.push_back(random<double>(y.shape(), seed++, 0.5, 1.5));
  }
  for (size_t i = 0; i < all.size(); ++i) all[i].requires_grad_(i >= c.in.size() || c.in[i].differentiable);
  return all;
}
void check_second(const OpCase& c) {
  CAPTURE(c.name());
  const auto all = leaves_of(c);
  const GradMap second = backward(first_gradients(c, all));
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].requires_grad()) continue;
    CAPTURE(i);
    const auto f = [&](const Tensor& moved) {
      auto at = all;
      at[i] = moved;
      for (size_t k = 0; k < at.size(); ++k) at[k].requires_grad_(all[k].requires_grad());
      return first_gradients(c, at);
    };
    const auto x = values<double>(all[i]);
    // Absent where the gradients do not depend on it: the differences must be 0 too.
    const Tensor g = second[all[i]] ? second[all[i]] : zeros_like(all[i]);
    const auto got = values<double>(g);
    double worst = 0, scale = 1;
    for (double y : got) scale = std::max(scale, std::abs(y));
    for (size_t e = 0; e < x.size(); ++e) {
      const auto moved = [&](double by) {
        auto v = x;
        v[e] += by;
        return f(from<double>(v, all[i].shape())).item<double>();
      };
      constexpr double h = 1e-5;
      worst = std::max(worst, std::abs((moved(h) - moved(-h)) / (2 * h) - got[e]));
    }
    CHECK(worst / scale < 1e-6);
  }
}
}  // namespace

TEST_CASE("second derivatives of every op case against central differences, every element") {
  for (auto& c : op_cases({2, 3}))
    if (c.gradcheck > 0) check_second(c);
}
TEST_CASE("second derivatives are the same, lazily and in f32 and bf16 within their precision") {
  for (auto& c : op_cases({2, 3})) {
    if (c.gradcheck == 0) continue;
    CAPTURE(c.name());
    const auto second = [&](DType t, bool lazy) {
      Mode mode(lazy);
      auto all = leaves_of(c);
      for (auto& x : all) {
        const bool tracked = x.requires_grad();
        x = is_float(x.dtype()) ? x.detach().to(t).detach() : x;
        x.requires_grad_(tracked);
      }
      const GradMap g = backward(first_gradients(c, all));
      std::vector<Tensor> r;
      for (auto& x : all) r.push_back(g[x]);
      return r;
    };
    const auto expected = second(DType::f64, false), lazy = second(DType::f64, true);
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      REQUIRE(bool(expected[i]) == bool(lazy[i]));
      if (expected[i]) CHECK(bits_of(expected[i]) == bits_of(lazy[i]));
    }
  }
}
