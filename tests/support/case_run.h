// Runs an OpCase on its inputs' device, and compares two runs.
#pragma once
#include "support/helpers.h"
#include "support/op_cases.h"

#include <tapegrad/ops/ops.h>

namespace tg {

struct Result {
  Tensors out;
  std::vector<Tensor> grads;  // one per input; empty where there is none
};
inline std::vector<Tensor> weights_of(const Tensors& out) {
  std::vector<Tensor> w;
  for (size_t k = 0; k < out.size(); ++k)
    w.push_back(random(out[k].shape(), 100 + k, 0.5, 1.5)
                    .to(is_float(out[k].dtype()) ? out[k].dtype() : DType::f32)
                    .to(out[k].device()));
  return w;
}
inline Tensor weighted(const Tensors& out, const std::vector<Tensor>& weights) {
  Tensor loss;
  for (size_t k = 0; k < out.size(); ++k) {
    if (!is_float(out[k].dtype())) continue;
    const Tensor part = sum(out[k] * weights[k]);
    loss = loss ? loss + part : part;
  }
  return loss;
}
// Outputs, and gradients of their weighted sum; a kernel may overwrite temporaries.
inline Result run_case(const OpCase& c, std::vector<Tensor> x, const std::vector<Tensor>& weights,
                       bool temporaries = false) {
  for (size_t i = 0; i < x.size(); ++i) x[i].requires_grad_(c.gradcheck > 0 && c.in[i].differentiable);
  std::vector<Tensor> used = x;
  if (temporaries)
    for (auto& t : used) t = t * 1.0;
  Result r{c.fn(used), {}};
  if (c.gradcheck == 0) return r;
  const GradMap g = backward(weighted(r.out, weights));
  for (auto& t : x) r.grads.push_back(g[t]);
  return r;
}
inline Result run_case(const OpCase& c, const std::vector<Tensor>& x) {
  const Tensors out = under<NoGradScope>([&] { return c.fn(x); });
  return run_case(c, x, weights_of(out));
}
inline std::vector<Tensor> roots_of(const Result& r) {
  std::vector<Tensor> all(r.out.begin(), r.out.end());
  for (auto& g : r.grads)
    if (g) all.push_back(g);
  return all;
}
inline std::vector<Tensor> wide(std::vector<Tensor> x) {
  for (auto& t : x) {
    t = t.detach();
    if (is_float(t.dtype())) t = t.to(DType::f64);
  }
  return x;
}
template <class F> void for_pairs(const OpCase& c, const Result& a, const Result& b, F check) {
  const auto pair = [&](const std::string& what, size_t i, const Tensor& x, const Tensor& y) {
    INFO(c.name(), what, i, ": ", detail::describe(x), " against ", detail::describe(y), ", off by ", distance(x, y));
    CHECK(x.shape() == y.shape());
    check(x, y);
  };
  REQUIRE(a.out.size() == b.out.size());
  REQUIRE(a.grads.size() == b.grads.size());
  for (size_t k = 0; k < a.out.size(); ++k) pair(".out", k, a.out[k], b.out[k]);
  for (size_t i = 0; i < a.grads.size(); ++i) {
    INFO(c.name(), ".grad", i);
    REQUIRE(bool(a.grads[i]) == bool(b.grads[i]));
    if (a.grads[i]) pair(".grad", i, a.grads[i], b.grads[i]);
  }
}
inline void check_close(const OpCase& c, const Result& a, const Result& b, double tolerance) {
  for_pairs(c, a, b, [&](const Tensor& x, const Tensor& y) { CHECK(distance(x, y) <= tolerance); });
}
inline void check_equal(const OpCase& c, const Result& a, const Result& b) {
  for_pairs(c, a, b, [&](const Tensor& x, const Tensor& y) { CHECK(bits_of(x) == bits_of(y)); });
}

}  // namespace tg
