// Central differences of the first gradients.
#include <tapegrad/ops/ops.h>

#include "support/helpers.h"
#include "support/op_cases.h"

using namespace tg;
namespace {
Tensor projected(Inputs v, uint64_t seed) {
  Tensor total;
  for (size_t k = 0; k < v.size(); ++k) {
    if (!v[k] || !is_float(v[k].dtype())) continue;
    const Tensor part = sum(v[k] * random<double>(v[k].shape(), seed + k, 0.5, 1.5).to(v[k].dtype()));
    total = total ? total + part.to(DType::f64) : part.to(DType::f64);
  }
  return total;
}
// Inputs x, weights w of the outputs -> a random projection of the gradients of <outputs, w> with respect to x. Its
// gradient has the second derivatives.
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
// Inputs of dtype t, then weights; all values are exact in `coarse` too.
std::vector<Tensor> leaves_of(const OpCase& c, DType t = DType::f64, DType coarse = DType::f64) {
  NoGradScope off;
  std::vector<Tensor> all = make_inputs(c, coarse);
  for (auto& x : all)
    if (is_float(x.dtype())) x = x.to(t).detach();
  uint64_t seed = 70;
  for (auto& y : c.fn(all))
    if (is_float(y.dtype()))
      all.push_back(random<double>(y.shape(), seed++, 0.5, 1.5).to(coarse).to(y.dtype()).detach());
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
    // Absent where gradients do not depend on it: differences must be 0 too.
    CHECK(gradcheck(f, all[i], second[all[i]] ? second[all[i]] : zeros_like(all[i])) < 1e-6);
  }
}
void without_error(const OpCase& c, const std::function<void()>& check) {
  INFO(c.name());
  CHECK(error_of(check) == "no error");
}
}  // namespace

TEST_CASE("second derivatives of every op case against central differences, every element") {
  for (auto& c : op_cases({2, 3}))
    if (c.gradcheck > 0) without_error(c, [&] { check_second(c); });
}
TEST_CASE("second derivatives lazily: the same bits; in f32 to 1e-5; in bf16 of the right dtype and size") {
  const auto second = [](const OpCase& c, const std::vector<Tensor>& all) {
    const GradMap g = backward(first_gradients(c, all));
    std::vector<Tensor> r;
    for (auto& x : all) r.push_back(g[x]);
    return r;
  };
  const auto check = [&](const OpCase& c) {
    const auto eager = second(c, leaves_of(c));
    const std::vector<Tensor> lazy = under<LazyScope>([&] { return second(c, leaves_of(c)); });
    check_same_bits(lazy, eager);
    for (DType t : {DType::f32, DType::bf16}) {
      const auto leaves = leaves_of(c, t, t);
      const auto got = second(c, leaves), expected = second(c, leaves_of(c, DType::f64, t));
      for (size_t i = 0; i < got.size(); ++i) {
        INFO(c.name(), ", input or weight ", i);
        REQUIRE(bool(got[i]) == bool(expected[i]));
        if (!got[i]) continue;
        CHECK(got[i].dtype() == leaves[i].dtype());
        // bf16: rounded gradients are multiplied and subtracted again.
        CHECK(distance(got[i], expected[i]) <= (t == DType::f32 ? 1e-5 : 0.2));
      }
    }
  };
  for (auto& c : op_cases({2, 3}))
    if (c.gradcheck > 0) without_error(c, [&] { check(c); });
}
