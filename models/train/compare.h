/// @file
/// compare(): one training step of a model on two sides (devices, dtypes, numbers of threads), from the same weights,
/// tokens and dropout. It compares weights, the results of every op in forward and backward, logits, loss, gradients,
/// and the parameters after an AdamW step. It finds the tensors that differ by more than rounding explains, and the
/// first of them. It builds trust in a backend, a kernel or a dtype for the model at hand. `tapegrad compare` and tests
/// use it.
#pragma once
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/models/optim/adamw.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tg {

/// Where a step is computed, and in which dtypes.
struct Side {
  Device device = {};
  DType weights = DType::f32;  ///< dtype of parameters: f32 or f64
  /// ForwardOptions::compute: bf16 over f32 weights. Unset means the dtype of the weights.
  std::optional<DType> compute = {};
  int threads = 0;  ///< threads of the CPU; 0 means the present number
  /// How the step runs. Unless both sides are eager, what lies between logits and gradients is not compared: it has no
  /// value of its own there.
  enum class Way { eager, lazy, compiled } way = Way::eager;
  /// The side of a text DEVICE[/DTYPE][/WAY][/THREADS]: "cuda/bf16", "cpu/f64", "cpu/f32/compiled", "cpu/f32/1". DTYPE
  /// is f64, f32, or bf16 (over f32 weights), WAY eager, lazy or compiled. An Error says what is wrong.
  static Side parse(std::string_view);
  bool operator==(const Side&) const = default;
};
/// The text that Side::parse() reads.
std::string to_string(const Side&);

/// The parts of a step, in the order of execution.
enum class Stage { weights, forward, backward, gradients, update };
/// The name of a stage.
std::string_view name_of(Stage);

/// One tensor, compared between both sides.
struct Compared {
  Stage stage;
  /// The name of a parameter, "logits", "loss", "norm of all gradients", or the place of an op: "gpt.h.0.mlp.fc
  /// linear", with "[1]" for its second output and "#2" for the second such op of the scope in that stage.
  std::string name;
  Shape shape;
  /// max |a - b|. Infinite if shapes differ, if only one of a and b is finite, or if only one is NaN.
  double absolute = 0;
  /// absolute / max |b|, where b is the reference. If all of b is rounding beside its neighbours (the gradient of a key
  /// bias is exactly 0), the largest neighbour replaces max |b|: outputs of the same op in the layers of the same
  /// parent, or parameters with the same last name there. In stage `update` it is norm(a - b) / norm(b), without
  /// elements whose gradient is rounding: Adam moves them by one learning rate either way, and a larger difference is
  /// an error all the same.
  double error = 0;
  double tolerance = 0;
  /// Whether the error is within the tolerance.
  bool within() const { return error <= tolerance; }
};

/// The result of compare().
struct Comparison {
  Side reference, other;
  std::vector<Compared> tensors = {};   ///< in the order of execution
  std::vector<std::string> unpaired =   ///< ops that occur in unequal numbers, such as casts to bf16: not compared
      {};                               ///< ops that the sides use in unequal numbers, as casts of bf16: not compared
  const Compared* first_apart() const;  ///< the first tensor out of tolerance; null if there is none
  /// Whether all tensors are within their tolerances.
  bool within() const { return !first_apart(); }
};

/// The tolerance of two sides, which is that of the coarser one: f64 1e-11, f32 1e-5, bf16 2e-2. It is 0 for sides that
/// differ at most in threads: they must be equal. Ways other than eager may round otherwise, by the rules that rewrite
/// ops.
double tolerance_of(const Side& reference, const Side& other);

/// Options of compare().
struct CompareOptions {
  AdamWConfig optimizer = {};
  double clip_norm = 1;
  uint64_t seed = 0;  ///< seed of dropout: both sides have the same masks
};

/// Runs `reference`, then `other`, from `weights`, which must be those that the model asks for. The loss is
/// cross_entropy() of the logits. The model is made once on each side. Tensors of the
/// reference stay in host memory until the other side has made its own. An Error if a side's device is missing (no
/// other device replaces it), or if its dtypes do not fit together.
/// @{
Comparison compare(const MakeModel&, const StateDict& weights, const Batch&, const Side& reference, const Side& other,
                   const CompareOptions& = {});
Comparison compare(const GptConfig&, const StateDict& weights, const Batch&, const Side& reference, const Side& other,
                   const CompareOptions& = {});
/// @}

/// A line about the sides and the result, then a table of the `most` tensors nearest to their tolerance or beyond it,
/// worst first, without equal ones; most < 0 means all.
std::string to_table(const Comparison&, int64_t most = 12);
/// One JSON object. Numbers that are not finite are null.
std::string to_json(const Comparison&);

}  // namespace tg
