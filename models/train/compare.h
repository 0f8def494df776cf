/// @file
/// compare: one training step of a model on two sides (devices, dtypes, numbers of threads) from the same weights,
/// tokens and dropout, tensor by tensor: weights, what every op makes in forward and backward, logits, loss, gradients,
/// and the parameters after an AdamW step. Says which tensors differ by more than rounding explains, and which is the
/// first. For trusting a backend, a kernel or a dtype on the model at hand. Users: `tapegrad compare`, tests.
#pragma once
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/optim/adamw.h>

#include <functional>
#include <string>
#include <vector>

namespace tg {

/// Where and in what a step is computed.
struct Side {
  Device device = {};
  DType weights = DType::f32;  ///< of parameters: f32 or f64
  DType compute = DType::f32;  ///< ForwardOptions::compute: f32, or bf16 over f32 weights
  int threads = 0;             ///< of the CPU; 0: as many as there are now
  /// "DEVICE", then "/f64", "/f32" or "/bf16" (over f32 weights), then "/N" threads: "cuda/bf16", "cpu/f64",
  /// "cpu/f32/1". An Error says what is wrong.
  static Side parse(std::string_view);
  bool operator==(const Side&) const = default;
};
std::string to_string(const Side&);  ///< as parse() takes it

enum class Stage { weights, forward, backward, gradients, update };  ///< in the order of execution
std::string_view name_of(Stage);

/// One tensor of both sides.
struct Compared {
  Stage stage;
  /// A parameter's, "logits", "loss", "norm of all gradients", or where an op stands: "gpt.h.0.mlp.fc linear", with
  /// "[1]" for its second output and "#2" for the second such op of the scope in that stage.
  std::string name;
  Shape shape;
  double absolute =
      0;  ///< max |a - b|; infinite where one is not finite and the other is, or one is NaN, or shapes differ
  /// absolute / max |b|, b being the reference. Where all of b is rounding beside its neighbours (the gradient of a key
  /// bias, which is exactly 0), the largest of those stands for max |b|: outputs of the same op in the layers of the
  /// same parent, or parameters of the same last name there. At update it is norm(a - b) / norm(b), without elements
  /// whose gradient is rounding: Adam sends them by one learning rate either way, and further is an error all the same.
  double error = 0;
  double tolerance = 0;
  bool within() const { return error <= tolerance; }
};

struct Comparison {
  Side reference, other;
  std::vector<Compared> tensors = {};  ///< in the order of execution
  std::vector<std::string> unpaired =
      {};                               ///< ops that the sides use in unequal numbers, as casts of bf16: not compared
  const Compared* first_apart() const;  ///< the first that is not within its tolerance; null: there is none
  bool within() const { return !first_apart(); }
};

/// Tolerances are those of the coarser side: f64 1e-11, f32 1e-5, bf16 2e-2. Sides that differ in threads at most must
/// be equal: 0.
double tolerance_of(const Side& reference, const Side& other);

struct CompareOptions {
  AdamWConfig optimizer = {};
  double clip_norm = 1;
  uint64_t seed = 0;  ///< of dropout: the same masks on both sides
};

/// A model in place: tokens (B, T) -> logits (B, T, V).
using Logits = std::function<Tensor(const Tensor& tokens, const ForwardOptions&)>;
/// Makes it from parameters; called once on each side.
using MakeModel = std::function<Logits(const Params&)>;

/// Runs `reference`, then `other`, from `weights`, which must be those that the model asks for. Tensors of the former
/// are kept in host memory until the latter has made its own. An Error when a side's device is missing (nothing else is
/// taken for it), or its dtypes do not go together.
Comparison compare(const MakeModel&, const StateDict& weights, const Batch&, const Side& reference, const Side& other,
                   const CompareOptions& = {});
Comparison compare(const GptConfig&, const StateDict& weights, const Batch&, const Side& reference, const Side& other,
                   const CompareOptions& = {});

/// A line on the sides and what came out, then a table: the `most` tensors nearest to their tolerance or past it, worst
/// first, without those that are equal; with `most` < 0 all of them.
std::string to_table(const Comparison&, int64_t most = 12);
std::string to_json(const Comparison&);  ///< one object; numbers that are not finite are null

}  // namespace tg
