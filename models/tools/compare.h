/// @file
/// compare(): one training step on two sides (devices, dtypes, thread counts), from the same weights, tokens and
/// dropout. It compares weights, every op's results in forward and backward, logits, loss, gradients, and parameters
/// after an AdamW step, and finds tensors that differ by more than rounding.
#pragma once
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/models/optim/adamw.h>

#include <optional>
#include <string>
#include <vector>

namespace tg {

/// Device, dtypes and mode of a step.
struct Side {
  Device device = {};
  DType weights = DType::f32;  ///< f32 or f64
  /// ForwardOptions::compute: bf16 over f32 weights. Unset: the dtype of the weights.
  std::optional<DType> compute = {};
  int threads = 0;  ///< CPU threads; 0: unchanged
  /// How the step runs. Only eager sides compare ops between logits and gradients: fused graphs lack these values.
  enum class Mode { eager, lazy, compiled } mode = Mode::eager;
  /// Parses DEVICE[/DTYPE][/WAY][/THREADS]: "cuda/bf16", "cpu/f64", "cpu/f32/compiled", "cpu/f32/1". DTYPE: f64, f32,
  /// bf16 (over f32 weights); WAY: eager, lazy, compiled. Errors say what is wrong.
  static Side parse(std::string_view);
  bool operator==(const Side&) const = default;
};
/// Side::parse()'s text.
std::string to_string(const Side&);

/// Stages of a step, in the order of execution.
enum class Stage { weights, forward, backward, gradients, update };
/// Names of stages.
template <>
inline constexpr EnumNames<5> kEnumNames<Stage>{"stage", {"weights", "forward", "backward", "gradients", "update"}};

/// One tensor, compared between both sides.
struct Compared {
  Stage stage;
  /// A parameter, "logits", "loss", "norm of all gradients", or an op: "gpt.h.0.mlp.fc linear", with "[1]" for its
  /// second output and "#2" for its second occurrence in that scope and stage.
  std::string name;
  Shape shape;
  /// max |a - b|. Infinite if shapes differ, or if exactly one of a and b is finite or NaN.
  double absolute = 0;
  /// absolute / max |b|, where b is the reference. If b is rounding next to its group (key biases have gradient 0), the
  /// group's largest element replaces max |b|. A group: one op's outputs in a parent's layers, or its parameters with
  /// one last name. Stage `update`: norm(a - b) / norm(b), without elements of rounding gradient, which Adam moves by
  /// up to one learning rate in either direction; more counts.
  double error = 0;
  double tolerance = 0;
  bool within() const { return error <= tolerance; }
};

/// Result of compare().
struct Comparison {
  Side reference, other;
  std::vector<Compared> tensors = {};      ///< execution order
  std::vector<std::string> unpaired = {};  ///< ops of unequal count, such as casts to bf16
  /// First tensor out of tolerance; null if there is none.
  const Compared* first_apart() const;
  bool within() const { return !first_apart(); }
};

namespace detail {
/// The coarser side's tolerance: f64 1e-11, f32 1e-5, bf16 2e-2. It is 0, exact equality, if the sides differ at most
/// in threads. Rewrite rules may change rounding in lazy and compiled modes.
double tolerance_of(const Side& reference, const Side& other);
}  // namespace detail

/// Options of compare().
struct CompareOptions {
  AdamWConfig optimizer = {};
  double clip_norm = 1;
  uint64_t seed = 0;  ///< dropout: equal masks
};

/// Runs `reference`, then `other`, from exactly these `weights`, by cross_entropy() of the logits. The reference's
/// tensors stay in host memory until compared. Throws if a side's device is missing, or its dtypes do not fit together.
/// @{
Comparison compare(const MakeModel&, const StateDict& weights, const Batch&, const Side& reference, const Side& other,
                   const CompareOptions& = {});
Comparison compare(const GptConfig&, const StateDict& weights, const Batch&, const Side& reference, const Side& other,
                   const CompareOptions& = {});
/// @}

/// A summary line, then a table of up to `most` unequal tensors by error / tolerance, worst first; most < 0 means all.
std::string to_table(const Comparison&, int64_t most = 12);
/// One JSON object. Non-finite numbers are null.
std::string to_json(const Comparison&);

}  // namespace tg
