/// @file
/// Params: the named parameters of a model. Layers ask for theirs by path ("h.3.mlp.fc.weight"). The same call creates
/// a parameter, or takes it from loaded tensors and checks its shape, so the names of a model are those of its files.
/// There is no layer base class and no registration: a layer is a struct of tensors. Layers, optimisers and checkpoints
/// use it.
#pragma once
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/core/scope.h>
#include <tapegrad/models/nn/init.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tg {

/// A parameter and its name.
struct Parameter {
  std::string name;
  Tensor tensor;
  /// Rows of the matrices that it is, one above the other (Init::parts); empty if it is one.
  Dims parts = {};
};

/// Tensors that are made one at a time, such as those of a file: only one beside the model takes memory.
struct TensorSource {
  std::map<std::string, Shape> shapes;             ///< of all tensors, by name
  std::function<Tensor(const std::string&)> read;  ///< makes the tensor of a name in `shapes`, on any device
};

/// The parameters below a path, as a cheap handle: copies share them. One thread at a time may use it.
class Params {
 public:
  /// An empty set of parameters. Their dtype is f64, f32 or bf16.
  explicit Params(Device = {}, uint64_t seed = 0, DType = DType::f32);

  /// The same parameters, with `name` or `i` added to the path.
  /// @{
  Params at(std::string_view name) const;
  Params at(int64_t i) const { return at(std::to_string(i)); }
  /// @}

  /// The same parameters at the same path, for a layer that shares them on purpose: get() gives those that exist
  /// already and makes the others. Linear a(p.at("l"), 2, 3), b(p.at("l").shared(), 2, 3) are two layers with one
  /// weight.
  Params shared() const;

  /// The parameter path() + "." + name, labelled with that name, which requires a gradient. It is taken from the loaded
  /// tensors if there are any. Otherwise `init` makes it, from a generator that depends on the seed and the name only.
  /// An Error if it was not loaded, or if it exists already: below shared() that is the same tensor, and an Error only
  /// if it has another shape.
  Tensor get(std::string_view name, const Shape&, const Init&) const;

  /// Gives the values of the parameters before the model is made. They are converted to the dtype and device of this
  /// object. A source is read as layers ask for their parameters, each tensor at most once.
  /// @{
  void load(TensorSource) const;
  void load(StateDict) const;
  /// @}
  /// Throws an Error that names loaded tensors for which no layer asked. Call it after the model is made.
  void check_all_used() const;

  std::vector<Parameter> all() const;        ///< in the order in which layers asked for them
  std::vector<Parameter> trainable() const;  ///< those that require a gradient now
  int64_t count() const;                     ///< elements of all parameters together
  StateDict state() const;                   ///< the values now, by name; later steps do not change them
  /// Gives existing parameters these values, converted as load() does. All or nothing: an Error names the first that is
  /// missing, unknown or of another shape.
  void assign(const StateDict&) const;

  /// Takes a parameter off the list, for a model that needs it no more: its memory is free when nobody else holds it.
  /// state() is an Error from then on, as a file without it could not be loaded. An Error if it is not there.
  void drop(const Tensor&) const;

  Device device() const;
  DType dtype() const;
  const std::string& path() const { return path_; }
  /// The scope of this path inside the scope that is open now; errors and profiles of a layer name it.
  const Scope* scope() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::string path_;
  bool shares_ = false;  // what exists may be asked for again
};

}  // namespace tg
