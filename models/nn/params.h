/// @file
/// Params: the named parameters of a model. Layers ask for theirs by path ("h.3.mlp.fc.weight"); the same call creates
/// a parameter or takes it from loaded tensors, with a check of its shape, so the names of a model are those of its
/// files. No layer base class and no registration: a layer is a struct of tensors. Used by layers, optimisers and
/// checkpoints.
#pragma once
#include <tapegrad/core/safetensors.h>
#include <tapegrad/core/scope.h>
#include <tapegrad/models/nn/init.h>

#include <memory>
#include <string>
#include <vector>

namespace tg {

struct Parameter {
  std::string name;
  Tensor tensor;
};

/// A cheap handle: a path and shared state. Not to be used from two threads at once.
class Params {
 public:
  /// dtype of the parameters: f64, f32 or bf16.
  explicit Params(Device = {}, uint64_t seed = 0, DType = DType::f32);

  /// The same parameters, with names that start with this path and `name` or `i`.
  Params at(std::string_view name) const;
  Params at(int64_t i) const { return at(std::to_string(i)); }

  /// The parameter <path>.<name>: labelled with that name, requires_grad. Taken from the loaded tensors if there are
  /// any, else made by `init`, from a generator that depends on the seed and the name only. Asked for again it is the
  /// same tensor. An Error when it was not loaded, or has another shape.
  Tensor get(std::string_view name, const Shape&, const Init&) const;

  /// Before the model is made: its parameters will be these. They are converted to the dtype and device given above.
  void load(StateDict) const;
  /// After the model is made: an Error that names loaded tensors which no layer asked for.
  void check_all_used() const;

  std::vector<Parameter> all() const;        ///< in the order in which they were asked for
  std::vector<Parameter> trainable() const;  ///< those that require a gradient now
  int64_t count() const;                     ///< elements of all of them
  StateDict state() const;                   ///< the values at this moment, by name: later steps do not change them
  /// Gives existing parameters these values, converted as by load(). All or none: an Error names the first that is
  /// missing, unknown or of another shape, and nothing has changed then.
  void assign(const StateDict&) const;

  Device device() const;
  DType dtype() const;
  const std::string& path() const { return path_; }
  /// The scope of this path inside the scope that is open now: errors and profiles of a layer name it.
  const Scope* scope() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::string path_;
};

}  // namespace tg
