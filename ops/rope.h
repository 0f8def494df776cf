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
  /// (B) i32 or i64: the position of the first row of each sequence x[b], instead of `start`; x is (B, ..., T, HS). It
  /// is read when the op runs: for sequences of unequal lengths, and for compiled functions.
  Tensor starts = {};
};
namespace op {

/// (x, starts?) -> x, rotated. The start changes at every step of generation, so the key leaves it out.
struct Rope : OpOf<Rope> {
  static constexpr auto kName = "rope";
  double theta;
  int64_t start;
  bool inverse;  ///< rotates back: the gradient of a rotation
  bool starts;   ///< whether the starts are input 1
  Rope(double base, int64_t first, bool back, bool several)
      : theta(base), start(first), inverse(back), starts(several) {}
  Traits traits() const override { return {.may_alias = bits(0), .dynamic_attributes = true}; }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return starts ? bits(1) : 0; }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(theta), k.add(inverse), k.add(starts); }
};
inline constexpr int64_t kRopeEnd = int64_t(1) << 29;  ///< positions are below it: where math::sincos ends
}  // namespace op

/// Rotates x (..., T, HS) by position, in the same shape. Row t has position start + t; (x_2i, x_2i+1) becomes (cos
/// x_2i - sin x_2i+1, sin x_2i + cos x_2i+1). f64, f32, or bf16 (computed in f32, rounded once); angles are computed
/// and reduced in f64. An Error if HS is odd, theta is below 1, start is negative, or a position is 2^29 or more. Of
/// starts it is one when the op runs; on a CUDA device as indexing.h says.
Tensor rope(const Tensor& x, const RopeOptions& = {});

/// The Error of a start from which `rows` rows leave the range of positions; `position` is that of its sequence. For
/// kernels.
Error rope_outside(std::string_view op, int64_t start, int64_t position, int64_t rows);

}  // namespace tg
