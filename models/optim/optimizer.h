/// @file
/// Optimizer: the common base of AdamW, Sgd and Muon: parameters, groups, learning rate, step count, and named state
/// for files.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/engine/one_user.h>
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

/// Overrides for parameters by name. Unset fields: values of the optimiser.
struct ParameterGroup {
  std::string pattern;  ///< glob_matches() of names: "*.bias", "h.0.*", "wte.weight"
  /// A factor of the optimiser's learning rate, also after set_lr().
  double lr_scale = 1;
  /// Replaces lr_scale: the rate while the optimiser's is the configured one.
  std::optional<double> lr = {};
  /// Replaces the configured one, also for biases and norms.
  std::optional<double> weight_decay = {};
  /// Replace AdamW's betas.
  std::optional<double> beta1 = {}, beta2 = {};
};

/// Treatment of parameters that backward() did not reach.
enum class MissingGrad {
  error,  ///< an Error names the first
  /// Keeps values and state; the step count grows.
  skip,
  /// A zero gradient: weights still decay and move by momentum.
  zero
};
/// Options of Optimizer::step().
struct StepOptions {
  /// Maximum global gradient norm; 0: no clipping.
  double clip_norm = 0;
  /// global_norm() of all gradients, if known. If empty, it is computed only for clipping.
  Tensor norm = {};
  MissingGrad missing_grad = MissingGrad::error;
};

namespace detail {
// A step of some entries, clipped if there is a norm.
struct OptimizerStep {
  std::vector<size_t> which = {};
  std::vector<Tensor> w = {}, low = {}, grads = {};
  std::vector<int64_t> first = {};  // this rank's first element; empty unless sharded
  Tensor norm = {};
  double max_norm = 0;

  void add(const OptimizerStep& s, size_t k) {
    which.push_back(s.which[k]), w.push_back(s.w[k]), low.push_back(s.low[k]), grads.push_back(s.grads[k]);
    if (!s.first.empty()) first.push_back(s.first[k]);
  }
};
// global_norm() from square_sums() of `bytes` each, which run once their gradients exist.
Tensor norm_in_parts(Inputs grads, int64_t bytes = 32 << 20);
// An Error unless x is finite and >= 0, or in [0, 1).
void check_rate(std::string_view op, std::string_view name, double);
void check_fraction(std::string_view op, std::string_view name, double);
template <class Config> const Config& valid(const Config& c) {
  c.validate();
  return c;
}
}  // namespace detail

/// An optimiser with its state. Copies share the state.
///
/// A Communicator of several ranks shards it: each rank holds the state of its shard, and all call step() and state()
/// together, with gradients of a GradientReducer (models/train/reduce.h). All ranks end with the parameters of an
/// unsharded optimiser, bit for bit.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Updates all parameters in place, asynchronously. Returns the global_norm() before clipping; without clipping it is
  /// empty unless passed. Throws, changing nothing, if no parameter was reached, or if one was not and
  /// StepOptions::missing_grad forbids that.
  Tensor step(const GradMap&, StepOptions = {});
  /// Sets later steps' learning rate, also in compiled functions: finite, at least 0.
  void set_lr(double);
  /// Uncounts the last step, if a non-finite norm made it change nothing.
  void uncount_step();
  /// The learning rate of the next step, where lr_scale is 1. lr() and steps() are Errors in compiled functions.
  double lr() const;
  int64_t steps() const;
  std::string_view name() const { return op_; }  ///< "adamw", "sgd" or "muon"

  /// State for checkpoints: "<name>.<what>" per tensor, in the parameter's shape. Sharded: rank 0 gets whole
  /// tensors on the host.
  StateDict state() const;
  /// Layouts of state(), by name.
  std::map<std::string, Layout> state_layouts() const;
  /// Restores a state() of `steps` steps of any number of ranks; each rank passes all. Other floating dtypes round to
  /// nearest. All or nothing: an Error names the first tensor that is missing, unknown or of another shape.
  void load_state(const StateDict&, int64_t steps);
  /// All ranks' shards; null unless sharded.
  const Partition* partition() const { return partition_.get(); }

 protected:
  /// A parameter and its group.
  struct Entry {
    std::string name;
    Tensor w;
    Dims row_splits;  // Parameter::row_splits
    Tensor low;       // Parameter::low
    ParameterGroup own;
  };
  using Step = detail::OptimizerStep;  ///< step of some entries
  /// The parameters require gradients, are f32 or f64 (AdamW's may be split), and are on one device. The first group
  /// whose pattern matches counts. `name` opens messages. If whole(p), one rank updates p. An Error for a wrong
  /// parameter or group, or an empty group.
  Optimizer(std::string_view name, std::vector<Parameter>, double lr, std::span<const ParameterGroup>,
            const std::shared_ptr<Communicator>&, const std::function<bool(const Parameter&)>& whole = {});
  Optimizer(const Optimizer&) = default;
  Optimizer& operator=(const Optimizer&) = default;

  /// Updates the entries of a step. Exactly one of its ops counts the step by clock(), even if other ranks own all
  /// elements. An Error changes nothing.
  virtual void update(const Step&) = 0;
  /// A state tensor "<name>.<what>": zeros like the parameter, maybe bf16. Sharded: (n) for
  /// this rank's n elements; whole parameters' are empty except on the owner.
  Tensor new_state(size_t entry, std::string_view what, std::optional<DType> = {});
  const std::vector<Entry>& entries() const { return entries_; }
  const Ref<OptimizerClock>& clock() const { return clock_; }
  /// Entries that backward() reached, others per MissingGrad. An Error if none.
  Step reached(const GradMap&, MissingGrad) const;
  /// An entry's decay: its group's, else `decay` for a matrix or if decay_all, else 0.
  double decay_of(size_t entry, double decay, bool decay_all) const;
  /// An Error for a group with betas but no member with has(i).
  void check_betas(const std::function<bool(size_t)>& has) const;

 private:
  struct State {
    size_t entry;
    Tensor t;  // empty if another rank owns it
    DType dtype;
  };
  std::string op_;
  std::vector<Entry> entries_;
  std::shared_ptr<const Partition> partition_;
  std::map<std::string, State> state_;
  Ref<OptimizerClock> clock_;
  std::shared_ptr<detail::OneUser> user_ = std::make_shared<detail::OneUser>();  // copies share weights
};

}  // namespace tg
