/// @file
/// A linear layer and the activation behind it as one op. It is not for users: plans make it of the two ops
/// (ops/rewrite_rules.cpp).
#pragma once
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>

#include <array>

namespace tg {

/// Two string literals, joined at compile time.
template <size_t A, size_t B> constexpr std::array<char, A + B - 1> joined(const char (&a)[A], const char (&b)[B]) {
  std::array<char, A + B - 1> r{};
  for (size_t i = 0; i < A - 1; ++i) r[i] = a[i];
  for (size_t i = 0; i < B; ++i) r[A - 1 + i] = b[i];
  return r;
}

namespace op {

/// The activations that can follow a linear layer in one op.
using ActivationFns = TypeList<Relu, Silu, Gelu, GeluTanh>;
/// (x, weight[, bias]) -> F(linear(x, weight[, bias])), the same bits, in place. Its gradient goes through the two ops,
/// as nothing between them is kept.
template <class F> struct LinearActivation : OpOf<LinearActivation<F>> {
  static constexpr auto kChars = joined("linear_", F::kName);
  static constexpr const char* kName = kChars.data();
  MatmulPrecision products;
  explicit LinearActivation(MatmulPrecision p) : products(p) {}
  Layouts infer(Inputs in) const override { return Linear(products).infer(in); }
  Tensors compose(Inputs in) const override {
    return {emit1(stateless<Unary<F>>(), {emit(make_ref<Linear>(products), in)[0]})};
  }
  void key(StructuralHash& k) const override { k.add(int(products)); }
};
}  // namespace op
}  // namespace tg
