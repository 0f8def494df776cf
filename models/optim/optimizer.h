/// @file
/// Optimizer: what AdamW, Sgd and Muon have in common. It holds the parameters, their groups, the learning rate, the
/// number of steps and the named state for files. Training loops and checkpoints use any optimiser through it.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/nn/params.h>
#include <tapegrad/models/optim/partition.h>
#include <tapegrad/ops/training/optim_step.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// What parameters of some names have of their own. What is unset is that of the optimiser's configuration.
struct ParameterGroup {
  std::string pattern;  ///< of names, for glob_matches(): "*.bias", "h.0.*", "wte.weight"
  double lr_scale = 1;  ///< their learning rate is this times that of the optimiser, now and after set_lr()
  /// Replaces that of the configuration, also for biases and norms.
  std::optional<double> weight_decay = {};
  /// AdamW's decay of the moments.
  std::optional<double> beta1 = {}, beta2 = {};
};

/// What becomes of parameters that backward() did not reach.
enum class Unreached {
  error,  ///< an Error names the first
  skip,   ///< they and their state stay as they are; the number of steps, by which AdamW corrects moments, goes on
  zero    ///< their gradient is 0: weights still decay, and move by what momentum is left
};
/// Options of Optimizer::step().
struct StepOptions {
  double clip_norm = 0;  ///< gradients are scaled so that their common norm is at most this; 0 means no clipping
  /// global_norm() of all gradients, for a caller that has it. If empty, it is computed only to clip by it.
  Tensor norm = {};
  Unreached unreached = Unreached::error;
};

/// An optimiser with its state. Copies share the state.
///
/// With the Communicator of several ranks it is sharded: each rank has the state of its part of the parameters alone,
/// and all ranks call step() and state() together. Gradients of a step() are then those of a GradientReducer
/// (models/train/reduce.h), and all ranks end with the same parameters: those of an optimiser that is not sharded, bit
/// for bit.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Updates all parameters in place; the host does not wait. Returns the norm of all gradients before clipping, as
  /// global_norm() makes it; without clipping it is empty unless the caller passed it. An Error if no parameter was
  /// reached, or by StepOptions::unreached if one was not; nothing has changed then.
  Tensor step(const GradMap&, StepOptions = {});
  /// Sets the learning rate of later steps, also of steps inside compiled functions, as schedules need it. Finite and
  /// at least 0.
  void set_lr(double);
  /// Takes the last step from the count, after one that has changed nothing because its norm was not finite.
  void uncount_step() { --clock_->t; }
  double lr() const { return clock_->lr; }       ///< of the next step, of parameters without an lr_scale
  int64_t steps() const { return clock_->t; }    ///< the number of steps done
  std::string_view name() const { return op_; }  ///< "adamw", "sgd" or "muon"

  /// The state now, for checkpoints: "<name>.<what>" for each tensor, in the parameter's shape and dtype. Of a sharded
  /// optimiser rank 0 gets whole tensors, on the host, and the others none.
  StateDict state() const;
  /// The layouts of state(), by name.
  std::map<std::string, Layout> state_layouts() const;
  /// Restores a state() that was taken after `steps` steps, with any number of ranks: all have it whole. All or
  /// nothing: an Error names the first tensor that is missing, unknown or of another shape.
  void load_state(const StateDict&, int64_t steps);
  /// Which rank updates what; null unless it is sharded.
  const Partition* partition() const { return partition_.get(); }

 protected:
  /// A parameter, and what its group says.
  struct Entry {
    std::string name;
    Tensor w;
    Dims parts;  // Parameter::parts
    ParameterGroup own;
  };
  /// A step of some entries: their indices, and a gradient for each. If there is a norm, gradients are clipped by it.
  struct Step {
    std::vector<size_t> which;
    std::vector<Tensor> grads;
    Tensor norm;
    double max_norm = 0;
  };
  /// The parameters require gradients, are f32 or f64, and are on one device. The first group whose pattern matches a
  /// name counts. `name` opens messages. An Error if a parameter or group is wrong, or a group has no parameter. One
  /// rank alone updates a parameter of which `whole` says so.
  Optimizer(std::string_view name, std::vector<Parameter>, double lr, std::span<const ParameterGroup>,
            const std::shared_ptr<Communicator>&, const std::function<bool(const Parameter&)>& whole = {});
  Optimizer(const Optimizer&) = default;
  Optimizer& operator=(const Optimizer&) = default;

  /// Updates the entries of a step. Exactly one op of it counts steps by clock(), also where another rank owns all that
  /// there is. On an Error nothing has changed.
  virtual void update(const Step&) = 0;
  /// A tensor of the state: zeros like the entry's parameter, with the name "<name>.<what>". Sharded, it is (n) for the
  /// n elements that this rank owns; of a whole parameter it is empty where another owns that.
  Tensor new_state(size_t entry, std::string_view what);
  /// Of entries of a step, the first element that this rank updates; empty unless it is sharded.
  std::vector<int64_t> firsts(const std::vector<size_t>& which) const;
  const std::vector<Entry>& entries() const { return entries_; }
  const Ref<OptimizerClock>& clock() const { return clock_; }
  /// The entries that backward() reached, and by Unreached the others. An Error if there are none.
  Step reached(const GradMap&, Unreached) const;
  /// The weights, or other lists, of the entries of a step.
  template <class T, class F> static std::vector<T> gather(const std::vector<size_t>& which, F&& of) {
    std::vector<T> r;
    r.reserve(which.size());
    for (const size_t i : which) r.push_back(of(i));
    return r;
  }
  /// The weights of the entries of a step.
  std::vector<Tensor> weights(const std::vector<size_t>& which) const {
    return gather<Tensor>(which, [&](size_t i) { return entries_[i].w; });
  }
  /// The decay of an entry: its group's; or else `decay` if it is a matrix, or if all decay.
  double decay_of(size_t entry, double decay, bool decay_all) const;
  /// Throws an Error for a group with betas of which no member `has` some.
  void check_betas(const std::function<bool(size_t)>& has) const;

 private:
  struct State {
    size_t entry;
    Tensor t;  // may be empty where another rank has it
  };
  std::string op_;
  std::vector<Entry> entries_;
  std::shared_ptr<const Partition> partition_;
  std::map<std::string, State> state_;
  Ref<OptimizerClock> clock_;
};

namespace detail {
// Throws an Error unless the number of that name is finite and at least 0, or in [0, 1).
void check_rate(std::string_view op, std::string_view name, double);
void check_fraction(std::string_view op, std::string_view name, double);
}  // namespace detail
}  // namespace tg
