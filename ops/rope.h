/// @file
/// Rotary position embedding (Su et al., RoFormer, 2021): each pair of neighbouring elements is rotated by an angle
/// that grows with the position. Pairs are interleaved, (x_2i, x_2i+1); there is no scaling for long contexts.
/// Attention layers use it.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

/// Options of rope().
struct RopeOptions {
  double theta = 10000;  ///< pair i of position p is rotated by p theta^(-2i / HS)
  int64_t start = 0;     ///< position of the first row
};
namespace op {

/// (x) -> x, rotated. The start changes at every step of generation, so the key leaves it out.
struct Rope : OpOf<Rope> {
  static constexpr auto kName = "rope";
  RopeOptions o;
  bool inverse;  ///< rotates back: the gradient of a rotation
  Rope(RopeOptions opt, bool back) : o(opt), inverse(back) {}
  Traits traits() const override { return {.may_alias = bits(0), .dynamic_attributes = true}; }
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(o.theta), k.add(inverse); }
};
}  // namespace op

/// Rotates x (..., T, HS) by position, in the same shape. Row t has position start + t; (x_2i, x_2i+1) becomes (cos
/// x_2i - sin x_2i+1, sin x_2i + cos x_2i+1). f64, f32, or bf16 (computed in f32, rounded once); angles are computed
/// and reduced in f64. An Error if HS is odd, theta is below 1, start is negative, or a position is 2^29 or more.
Tensor rope(const Tensor& x, RopeOptions = {});

}  // namespace tg
