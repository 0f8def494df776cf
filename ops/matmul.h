/// @file
/// Matrix products, batched, and linear layers. Operands may be any views: kernels read strides, so a transposed weight
/// costs no copy. No vectors (reshape first) and no other contractions. For linear layers, and attention's composition.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

struct MatmulOptions {
  bool trans_a = false, trans_b = false;          ///< read the last two dimensions of a or b swapped
  MatmulPrecision products = matmul_precision();  ///< the thread's (core/mode.h) where these options are made
};
namespace op {

struct Matmul : OpOf<Matmul> {
  static constexpr auto kName = "matmul";
  MatmulOptions o;
  explicit Matmul(MatmulOptions opt) : o(opt) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override {
    return (tracked & 1) << 1 | (tracked & 2) >> 1;  // a frozen weight keeps no activations
  }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(o.trans_a), k.add(o.trans_b), k.add(int(o.products)); }
};
/// (x, weight[, bias])
struct Linear : OpOf<Linear> {
  static constexpr auto kName = "linear";
  MatmulPrecision products;
  explicit Linear(MatmulPrecision p) : products(p) {}
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask tracked) const override { return (tracked & 1) << 1 | (tracked & 2) >> 1; }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(int(products)); }
};
}  // namespace op

/// (..., M, K) x (..., K, N) -> (..., M, N); leading dimensions broadcast. f64, f32, bf16 (accumulated in f32). f32 is
/// computed in f32, unless TF32 is asked for: MatmulPrecisionScope in core/mode.h.
Tensor matmul(const Tensor& a, const Tensor& b, MatmulOptions = {});
/// x (..., in), weight (out, in), bias (out) -> x weight^T + bias, (..., out).
Tensor linear(const Tensor& x, const Tensor& weight);
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

}  // namespace tg
