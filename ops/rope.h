/// @file
/// Rotary position embedding (Su et al., RoFormer, 2021): each pair of neighbouring elements is turned by an angle that
/// grows with the position. Pairs are (x_2i, x_2i+1), interleaved; no scaling of long contexts. Users: attention
/// layers.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

struct RopeOptions {
  double theta = 10000;  ///< pair i of position p turns by p theta^(-2i / HS)
  int64_t start = 0;     ///< the position of the first row
};
namespace op {

/// the start changes at every step of generation: not in the key
struct Rope : OpOf<Rope> {
  static constexpr auto kName = "rope";
  RopeOptions o;
  bool inverse;  ///< turns back: the gradient of a rotation
  Rope(RopeOptions opt, bool back) : o(opt), inverse(back) {}
  Traits traits() const override { return {.may_alias = bits(0), .dynamic_attributes = true}; }
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(o.theta), k.add(inverse); }
};
}  // namespace op

/// x (..., T, HS) -> the same shape: row t is position start + t, and (x_2i, x_2i+1) becomes
/// (cos x_2i - sin x_2i+1, sin x_2i + cos x_2i+1). f64, f32, bf16 (computed in f32, rounded once; angles are formed and
/// reduced in f64). An Error when HS is odd, theta is below 1, start is negative, or a position is 2^29 or more.
Tensor rope(const Tensor& x, RopeOptions = {});

}  // namespace tg
