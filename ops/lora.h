/// @file
/// Low-rank adaptation of a linear layer (Hu et al., 2021, arXiv:2106.09685): one op of two thin GEMMs keeps the
/// intermediate result in cache. models/nn/lora.h has dropout, merging and freezing.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace op {

/// (x (..., in), a (in, r), b (r, out)[, base (..., out)]) -> (y (..., out), h (T, r)), with h = x a.
struct Lora : OpOf<Lora> {
  static constexpr auto kName = "lora";
  double scale;
  explicit Lora(double s) : scale(s) {}
  Traits traits() const override { return {.may_alias = mask_of(3)}; }
  Layouts infer(Inputs) const override;
  /// x for da, a for dx, b for both, h = x a for db.
  Mask saves_in(Mask tracked) const override {
    return (tracked >> 1 & 1) | (tracked & 1) << 1 | ((tracked | tracked >> 1) & 1) << 2;
  }
  Mask saves_out(Mask tracked) const override { return (tracked >> 2 & 1) << 1; }
  Tensors vjp(const Vjp&) const override;
  Tensors compose(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(scale); }
  double multiply_adds(Bufs in, Bufs out) const override;
};
}  // namespace op

/// scale (x a) b, plus base if given: x (..., in), a (in, r), b (r, out), base and the result (..., out). All have one
/// dtype: f64, f32, or bf16 (summed in f32; x a is rounded once). Scaling x a changes last bits unless scale is a power
/// of two. On CUDA, under MatmulPrecision::high and medium, it is two calls of matmul().
Tensor lora(const Tensor& x, const Tensor& a, const Tensor& b, double scale, const Tensor& base = {});

}  // namespace tg
