/// @file
/// Params: a model's parameters by path ("h.3.mlp.fc.weight"). The same call creates a parameter, or takes a loaded
/// tensor and checks its shape: files share the model's names. Init fills each from a separate generator, independent
/// of the others.
#pragma once
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/core/rng.h>
#include <tapegrad/core/scope.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/ops/quantized/block_linear.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tg {

/// How the matrices of a model are initialised.
enum class InitScheme {
  gpt2,    ///< N(0, std^2), smaller residual projections (GPT-2)
  xavier,  ///< N(0, 2 / (in + out)), truncated: Glorot, Bengio 2010
  fan_in   ///< N(0, std^2 / in): LeCun et al., 1998
};
/// Names of schemes.
template <> inline constexpr EnumNames<3> kEnumNames<InitScheme>{"init", {"gpt2", "xavier", "fan_in"}};

/// How one parameter is initialised.
struct Init {
  enum class Kind { constant, normal, truncated_normal, xavier, uniform, fan_in };
  Kind kind = Kind::constant;
  double mean = 0, std = 0;
  double bound = 0;  ///< uniform: U(-bound, bound)
  /// xavier: rows of each stacked matrix; empty: one.
  Dims row_splits = {};

  /// One value everywhere.
  static Init constant(double x) { return {.mean = x}; }
  /// N(mean, std^2).
  static Init normal(double std, double mean = 0) { return {.kind = Kind::normal, .mean = mean, .std = std}; }
  /// N(0, std^2) truncated at 3 std. The deviation is 0.9866 std; it is not corrected.
  static Init truncated_normal(double std) { return {.kind = Kind::truncated_normal, .std = std}; }
  /// U(-bound, bound).
  static Init uniform(double bound) { return {.kind = Kind::uniform, .bound = bound}; }
  /// A matrix (out, in): truncated_normal(sqrt(2 / (in + out))), with the `out` of each part.
  static Init xavier() { return {.kind = Kind::xavier}; }

  /// A matrix (out, in): normal(std / sqrt(in)).
  static Init fan_in(double std) { return {.kind = Kind::fan_in, .std = std}; }

  /// A new leaf, f64, f32 or bf16, equal on every device. An Error for negative std or bound, or a shape that does not
  /// fit the parts.
  Tensor make(const Shape&, DType, Device, Rng) const;
};

/// A parameter and its name.
struct Parameter {
  std::string name;
  Tensor tensor;
  /// Rows of stacked matrices (Init::row_splits); empty: one.
  Dims row_splits = {};
  Tensor low = {};  ///< low half of a split() weight, or empty
};

/// Tensors made one at a time, to limit memory.
struct TensorSource {
  std::map<std::string, Shape> shapes;
  std::function<Tensor(const std::string&)> read;  ///< makes a tensor of `shapes`, on any device
  /// Unless empty: the blocks of a matrix that stays frozen, or no value: read() makes it.
  std::function<std::optional<BlockWeight>(const std::string&)> blocks = {};
};

/// Handle to the parameters below a path. Threads take turns.
class Params {
 public:
  /// An empty set of parameters in f64, f32 or bf16.
  explicit Params(Device = {}, uint64_t seed = 0, DType = DType::f32);

  /// These parameters, with `name` or `i` appended to the path.
  /// @{
  Params at(std::string_view name) const;
  Params at(int64_t i) const { return at(std::to_string(i)); }
  /// @}

  /// These parameters at this path, whose get() returns existing ones: Linear a(p.at("l"), 2, 3),
  /// b(p.at("l").shared(), 2, 3) share one weight.
  Params shared() const;

  /// Parameter path() + "." + name, labelled so, requiring a gradient. It comes from the loaded tensors if any,
  /// else from `init`, with a generator of seed and name. Throws if it was not loaded, or exists already; under
  /// shared() only if it exists with another shape.
  Tensor get(std::string_view name, const Shape&, const Init&) const;
  /// The blocks of a matrix (out, in) that the source keeps in blocks, frozen, or no value: get() makes it. It counts
  /// in numel(), is not in all(), and state() throws.
  std::optional<BlockWeight> blocks(std::string_view name, const Shape&) const;

  /// Sets the values of the parameters before the model is made, converted to this object's dtype and device. A source
  /// is read as layers ask for their parameters, each tensor at most once.
  /// @{
  void load(TensorSource) const;
  void load(StateDict) const;
  /// @}
  /// Throws an Error that names loaded tensors that no layer used. Call it after the model is made.
  void check_all_used() const;

  std::vector<Parameter> all() const;                     ///< order of the layers' requests
  std::map<std::string, BlockWeight> all_blocks() const;  ///< names and blocks
  std::vector<Parameter> trainable() const;               ///< parameters that require a gradient now
  int64_t numel() const;                                  ///< elements of all parameters
  /// Current values by name; later steps leave them. Split weights are whole, on the host. An Error if some are
  /// missing: dropped, or in blocks.
  StateDict state() const;
  StateDict tensors() const;  ///< state() without those in blocks
  /// Sets existing parameters, converted as in load(). All or nothing: an Error names the first that is missing,
  /// unknown or of another shape.
  void assign(const StateDict&) const;

  /// Makes an f32 weight bf16 by split_weight(): models must read it in bf16, and AdamW updates it. False if it is no
  /// parameter of these, or frozen.
  bool split(const Tensor& weight) const;
  /// Removes a parameter that the model no longer needs; its last holder frees the memory. state() then throws, because
  /// its file could not be loaded. Throws if the parameter is not listed.
  void drop(const Tensor&) const;

  Device device() const;
  DType dtype() const;
  const std::string& path() const { return path_; }
  /// This path's scope inside the current one; errors and profiles name it.
  const Scope* scope() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::string path_;
  bool shares_ = false;  // get() may return existing parameters
};

}  // namespace tg
