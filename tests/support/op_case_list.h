// Inputs and lists of op cases, shared by their files.
#pragma once
#include "support/op_cases.h"

namespace tg {
inline TensorInit floats(const Shape& s, double lo = -2, double hi = 2) { return {s, lo, hi}; }
inline TensorInit indices(const Shape& s, int64_t n) { return {s, 0, double(n), true, false}; }
inline TensorInit index(int64_t n) { return {{1}, double(n), double(n + 1), true, false}; }

// Cases of some sizes.
struct OpCaseList {
  int64_t r, c;
  std::vector<OpCase> list = {};

  OpCase& several(std::string_view op, std::string_view variant, std::vector<TensorInit> in,
                  std::function<Tensors(Inputs)> f) {
    return list.emplace_back(std::string(op), std::string(variant), std::move(in), std::move(f));
  }
  // No template: there are hundreds of functions.
  OpCase& one(std::string_view op, std::string_view variant, std::vector<TensorInit> in,
              std::function<Tensor(Inputs)> f) {
    return several(op, variant, std::move(in), [f = std::move(f)](Inputs x) { return Tensors{f(x)}; });
  }
  void no_grad(std::string_view op, std::string_view variant, std::vector<TensorInit> in,
               std::function<Tensor(Inputs)> f) {
    one(op, variant, std::move(in), std::move(f)).gradcheck = 0;
  }
};

}  // namespace tg
