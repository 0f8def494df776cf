// Graphs of pointwise ops that are planned as chains, for cuda/test_chain.cpp and test_rtc.cpp.
#pragma once
#include <tapegrad/ops/ops.h>

#include "support/helpers.h"

namespace tg {

struct ChainCase {
  const char* name;
  std::vector<Tensor> in;
  std::function<std::vector<Tensor>(Inputs)> f;
  size_t kernels = 1;
};

inline Tensor total(const std::vector<Tensor>& x, size_t begin, size_t end) {
  Tensor sum = x[begin];
  for (size_t i = begin + 1; i < end; ++i) sum = sum + x[i];
  return sum;
}
// Two sums: one would exceed the length of a chain.
inline std::vector<Tensor> two_totals(const std::vector<Tensor>& x) {
  return {total(x, 0, x.size() / 2), total(x, x.size() / 2, x.size())};
}
template <class... F> std::vector<Tensor> values_of_all(op::TypeList<F...>, const Tensor& x) {
  return two_totals({emit1(stateless<op::Unary<F>>(), {x})...});
}
template <class F> void add_slope(std::vector<Tensor>& to, const Tensor& x, const Tensor& dy) {
  if constexpr (!op::is_linear<F>) {
    if constexpr (op::UnaryGrad<F>::kDy == 2)
      to.push_back(emit1(stateless<op::UnaryGrad<F>>(), {x, x, dy}));
    else
      to.push_back(emit1(stateless<op::UnaryGrad<F>>(), {x, dy}));
  }
}
template <class... F> std::vector<Tensor> slopes_of_all(op::TypeList<F...>, const Tensor& x, const Tensor& dy) {
  std::vector<Tensor> all;
  (add_slope<F>(all, x, dy), ...);
  return two_totals(all);
}
template <class... F> std::vector<Tensor> pairs_of_all(op::TypeList<F...>, const Tensor& x, const Tensor& y) {
  const auto with_number = [&](bool left) {
    return total({emit1(make_ref<op::BinaryScalar<F>>(1.25, left), {x})...}, 0, sizeof...(F));
  };
  return {total({emit1(stateless<op::Binary<F>>(), {x, y})...}, 0, sizeof...(F)), with_number(false),
          with_number(true)};
}
template <class F> void add_partials(std::vector<Tensor>& to, const Tensor& x, const Tensor& y, const Tensor& dz) {
  if constexpr (op::has_partials<F>)
    for (const bool second : {false, true}) {
      to.push_back(emit1(make_ref<op::BinaryGrad<F>>(second), {x, y, dz}));
      to.push_back(emit1(make_ref<op::BinaryScalarGrad<F>>(0.75, second), {x, dz}));
    }
}
template <class... F>
std::vector<Tensor> partials_of_all(op::TypeList<F...>, const Tensor& x, const Tensor& y, const Tensor& dz) {
  std::vector<Tensor> all;
  (add_partials<F>(all, x, y, dz), ...);
  return {total(all, 0, all.size())};
}
template <class... F> std::vector<Tensor> comparisons_of_all(op::TypeList<F...>, const Tensor& x, const Tensor& y) {
  const auto count = [&](const std::vector<Tensor>& all) {
    Tensor n = x;
    for (const Tensor& holds : all) n = where(holds, n + 1.0, n * 2.0);
    return n;
  };
  return {count({emit1(stateless<op::Compare<F>>(), {x, y})...}),
          count({emit1(make_ref<op::CompareScalar<F>>(1.0), {x})...})};
}

inline std::vector<ChainCase> chain_cases() {
  const auto floats = [](const Shape& s, uint64_t seed, DType t) { return random(s, seed, 0.25, 2).to(t); };
  const auto whole = [](const Shape& s, uint64_t seed, DType t) { return random(s, seed, -3, 4).to(DType::i32).to(t); };
  const auto mask = [](const Shape& s, uint64_t seed) { return lt(random(s, seed), 0); };
  const Shape s{5, 33};
  std::vector<ChainCase> r;
  r.push_back({"every unary function, f32",
               {floats(s, 1, DType::f32)},
               [](Inputs x) { return values_of_all(op::UnaryFns{}, x[0]); },
               2});
  r.push_back({"every derivative, bf16",
               {floats(s, 2, DType::bf16), floats(s, 3, DType::bf16)},
               [](Inputs x) { return slopes_of_all(op::UnaryFns{}, x[0], x[1]); },
               2});
  r.push_back({"every function of two, f64",
               {floats(s, 4, DType::f64), floats(s, 5, DType::f64)},
               [](Inputs x) { return pairs_of_all(op::BinaryFns{}, x[0], x[1]); },
               3});
  r.push_back({"every partial derivative, f32",
               {floats(s, 6, DType::f32), floats(s, 7, DType::f32), floats(s, 8, DType::f32)},
               [](Inputs x) { return partials_of_all(op::BinaryFns{}, x[0], x[1], x[2]); }});
  r.push_back({"every comparison, i64",
               {whole(s, 9, DType::i64), whole(s, 10, DType::i64)},
               [](Inputs x) { return comparisons_of_all(op::CompareFns{}, x[0], x[1]); },
               2});
  r.push_back(
      {"integers and masks, i32", {whole(s, 11, DType::i32), whole(s, 12, DType::i32), mask(s, 13)}, [](Inputs x) {
         const Tensor a = clamp(abs(-x[0]) * x[1] - 3.0, {.min = -2}), b = relu(maximum(a, x[1]));
         const Tensor m = eq(x[2], ne(a, 1.0));
         return std::vector{masked_fill(clamp(minimum(a, b), {.max = 7}), m, -5), m};
       }});
  r.push_back({"elements that are only moved",
               {mask(s, 14), whole(s, 15, DType::f16), whole({33}, 16, DType::f16)},
               [](Inputs x) {
                 const Tensor y = where(x[0], x[1], x[2]);
                 return std::vector{masked_fill(y, x[0], 1.5), where(x[0], y, y)};
               }});
  r.push_back({"bytes", {mask(s, 17), whole(s, 18, DType::i8), whole(s, 19, DType::i8)}, [](Inputs x) {
                 return std::vector{masked_fill(where(x[0], x[1], x[2]), eq(x[0], x[0]), 3)};
               }});
  // (8, 40): vectors with rows and columns; (6, 33): no vectors.
  for (const Shape& shape : {Shape{8, 40}, Shape{6, 33}})
    r.push_back({shape[0] == 8 ? "a row, a column, a number and f64, in groups" : "a row, a column, a number and f64",
                 {floats(shape, 20, DType::f32), floats({shape[1]}, 21, DType::f32),
                  floats({shape[0], 1}, 22, DType::f32), floats({}, 23, DType::f32)},
                 [](Inputs x) {
                   const Tensor y = gelu(x[0] + x[1]);
                   return std::vector{(y * x[2] - x[3]) * y, clamp(y, {.min = 0.5, .max = 1.5})};
                 }});
  r.push_back({"bf16 over what a kernel has left for it",
               {floats({16, 24}, 24, DType::bf16), floats({24}, 25, DType::bf16)},
               [](Inputs x) { return std::vector{silu(cumsum(x[0], 0) + x[1]) * 0.5}; },
               2});
  return r;
}

}  // namespace tg
