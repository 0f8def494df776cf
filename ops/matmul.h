/// @file
/// Batched matrix multiplication and linear layers. Operands may be any views; a transposed weight costs no copy. There
/// are no vectors (reshape first) and no other contractions.
#pragma once
#include <tapegrad/ops/pointwise.h>

#include <array>

namespace tg {

/// Options of matmul().
struct MatmulOptions {
  bool trans_a = false, trans_b = false;  ///< swaps the last two dimensions of a, or b
  MatmulPrecision precision = matmul_precision();
};
namespace detail {
/// Concatenates string literals at compile time.
template <size_t A, size_t B> constexpr std::array<char, A + B - 1> joined(const char (&a)[A], const char (&b)[B]) {
  std::array<char, A + B - 1> r{};
  for (size_t i = 0; i < A - 1; ++i) r[i] = a[i];
  for (size_t i = 0; i < B; ++i) r[A - 1 + i] = b[i];
  return r;
}
}  // namespace detail

namespace op {

/// (a, b) -> a b.
struct Matmul : OpOf<Matmul> {
  static constexpr auto kName = "matmul";
  MatmulOptions o;
  explicit Matmul(MatmulOptions opt) : o(opt) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override {
    return (tracked & 1) << 1 | (tracked & 2) >> 1;  // a frozen weight keeps no activations
  }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(o.trans_a), k.add(o.trans_b), k.add(int(o.precision)); }
  double multiply_adds(Bufs in, Bufs out) const override;
};
/// (x, weight[, bias]) -> x weight^T + bias.
struct Linear : ProductOp<Linear> {
  static constexpr auto kName = "linear";
  MatmulPrecision precision;
  bool unrounded;  // f32 of bf16 operands; no bias
  explicit Linear(MatmulPrecision p, bool f32 = false) : precision(p), unrounded(f32) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return (tracked & 1) << 1 | (tracked & 2) >> 1; }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(int(precision)), k.add(unrounded); }
};

/// Activations that plans fuse into a linear layer (ops/rewrite_rules.cpp); not for users.
using ActivationFns = TypeList<Relu, Silu, Gelu, GeluTanh>;
/// (x, weight[, bias]) -> F(linear(x, weight[, bias])), the same bits, in place. The gradient goes through the two ops,
/// since linear()'s result is not kept.
template <class F> struct LinearActivation : ProductOp<LinearActivation<F>> {
  static constexpr auto kChars = detail::joined("linear_", F::kName);
  static constexpr const char* kName = kChars.data();
  MatmulPrecision precision;
  explicit LinearActivation(MatmulPrecision p) : precision(p) {}
  Layouts infer(Inputs in) const override { return Linear(precision).infer(in); }
  Tensors compose(Inputs in) const override {
    return {emit1(stateless<Unary<F>>(), {emit(make_ref<Linear>(precision), in)[0]})};
  }
  void key(StructuralHash& k) const override { k.add(int(precision)); }
};
}  // namespace op

/// a (..., M, K) times b (..., K, N): (..., M, N). Leading dimensions broadcast; dtypes are equal: f64, f32, or bf16
/// (accumulated in f32). MatmulPrecision sets the precision of f32.
Tensor matmul(const Tensor& a, const Tensor& b, MatmulOptions = {});
/// x (..., in) times weight (out, in) transposed, plus bias (out): (..., out). Dtypes are equal: f64, f32, or bf16
/// (accumulated in f32).
/// @{
Tensor linear(const Tensor& x, const Tensor& weight);
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);
/// @}
namespace detail {
/// linear() of a head: f32 for bf16 operands on a CPU, so that logits are not rounded before a loss or a choice.
Tensor unrounded_linear(const Tensor& x, const Tensor& weight, MatmulPrecision = matmul_precision());
}  // namespace detail

}  // namespace tg
