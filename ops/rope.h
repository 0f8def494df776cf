/// @file
/// Rotary position embedding (Su et al., RoFormer, 2021): each pair of adjacent elements, interleaved (x_2i, x_2i+1),
/// is rotated by an angle proportional to the position. Frequencies can be scaled for contexts longer than in training.
#pragma once
#include <tapegrad/core/math.h>
#include <tapegrad/core/op.h>

namespace tg {

/// Scaling of the frequencies of rope().
enum class RopeScalingKind {
  none,
  /// All are divided by the factor: position interpolation (Chen et al., 2023).
  linear,
  /// Long waves are divided by the factor, short ones stay, those between are blended (Llama 3.1, 2024).
  llama3
};
/// A scaling of frequencies. Numbers that the kind does not use have their defaults.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1;
  /// llama3: waves that fit more than high_freq times into the original context stay, those that fit less than low_freq
  /// times are divided by the factor.
  double low_freq = 1, high_freq = 4;
  int64_t original_context = 0;  ///< llama3: context length of the unscaled training
  /// In (0, 1], also without a kind: only the first round(fraction HS / 2) pairs rotate, by theta^(-i / their number).
  double fraction = 1;
  bool operator==(const RopeScaling&) const = default;

  /// Throws an Error for the first wrong number; `op` opens it, and `prefix` precedes the names.
  void validate(std::string_view op, std::string_view prefix = "") const;
};
/// Options of rope().
struct RopeOptions {
  double theta = 10000;  ///< pair i of position p rotates by p theta^(-2i / HS)
  int64_t start = 0;     ///< position of the first row
  /// (B) i32 or i64: position of the first row of each sequence x[b], instead of `start`; x is (B, ..., T, HS). Read
  /// when the op runs.
  Tensor starts = {};
  RopeScaling scaling = {};
  /// > 0: x is (..., T, H, HS), as projected queries, keys and values; the first `heads` of H heads are rotated, the
  /// others stay. 0: x is (..., T, HS).
  int64_t heads = 0;
};
namespace op {

/// (x, starts?) -> x, rotated. Keys omit the start, which changes at every step of generation.
struct Rope : OpOf<Rope> {
  static constexpr auto kName = "rope";
  double theta;
  RopeScaling scaling;
  int64_t start;
  bool inverse;  ///< rotates back: the gradient of a rotation
  bool starts;   ///< starts are input 1
  int64_t heads;
  Rope(double base, const RopeScaling& s, int64_t first, bool back, bool several, int64_t rotated)
      : theta(base), scaling(s), start(first), inverse(back), starts(several), heads(rotated) {}
  Traits traits() const override {
    return {.may_alias = mask_of(0), .dynamic_attributes = true, .cheap_to_recompute = true};
  }
  Layouts infer(Inputs) const override;
  Mask saves_in(Mask) const override { return starts ? mask_of(1) : 0; }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override {
    const RopeScaling& s = scaling;
    k.add(theta), k.add(int(s.kind)), k.add(s.factor), k.add(s.low_freq), k.add(s.high_freq), k.add(s.original_context);
    k.add(s.fraction), k.add(inverse), k.add(starts), k.add(heads);
  }
  void replay_key(StructuralHash& k) const override { key(k), k.add(uint64_t(start)); }
  /// Rotated rows of x (..., T, HS), and the remainder: no elements without heads.
  /// @{
  Layout rotated(const Layout& x) const;
  Layout kept(const Layout& x) const;
  /// @}
};
inline constexpr int64_t kRopeEnd = int64_t(1) << 29;  ///< limit of math::sincos
}  // namespace op

namespace kernel {
/// Rotation of a pair from a position to the next, for kernels.
TG_HD_INLINE double rope_frequency(double theta, const RopeScaling& s, int64_t pair, int64_t pairs) {
  const int64_t turning = s.fraction == 1 ? pairs : int64_t(s.fraction * double(pairs) + 0.5);
  if (pair >= turning) return 0;
  const double f = math::detail::own_pow(theta, -double(pair) / double(turning));
  if (s.kind == RopeScalingKind::none) return f;
  if (s.kind == RopeScalingKind::linear) return f / s.factor;
  const double waves = double(s.original_context) * f / 6.283185307179586476925;  // wavelengths in the original context
  if (waves > s.high_freq) return f;
  if (waves < s.low_freq) return f / s.factor;
  const double kept = (waves - s.low_freq) / (s.high_freq - s.low_freq);
  return (1 - kept) * (f / s.factor) + kept * f;
}
/// The Error of a start whose `rows` rows leave the valid positions; `position`: its sequence.
Error rope_outside(std::string_view op, int64_t start, int64_t position, int64_t rows);
}  // namespace kernel

/// Rotates x (..., T, HS) by position. Row t has position start + t; (x_2i, x_2i+1) becomes (cos x_2i - sin x_2i+1, sin
/// x_2i + cos x_2i+1). f64, f32, or bf16 (computed in f32, rounded once); angles are computed and reduced in f64. An
/// Error if HS is odd, theta is below 1, the scaling is wrong, start is negative, or a position is 2^29 or more; for
/// `starts` when the op runs, see indexing.h.
Tensor rope(const Tensor& x, const RopeOptions& = {});

}  // namespace tg
