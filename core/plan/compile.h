/// @file
/// compile(): plans a function of tensors once and replays the plan. The function is called once per signature, and its
/// ops are planned as a whole. Later calls skip it, except for checks (CompileOptions::verify). They infer no shapes,
/// make no nodes and allocate memory only for results; on Device::cuda() they launch one CUDA graph, from the third
/// call on. It speeds up steps of many small ops, which are bound by host time. Results are bitwise equal, except where
/// a rule of ops/rewrite_rules.cpp says otherwise.
#pragma once
#include <tapegrad/core/rng.h>
#include <tapegrad/core/tensor.h>

#include <concepts>
#include <memory>
#include <string>
#include <vector>

namespace tg {

/// Options of compile().
struct CompileOptions {
  /// Generators that the function draws from; replays use and advance their current state.
  std::vector<Rng*> generators = {};
  /// Tensors that the function replaces by `h = ...`. Replays update them like assign(): the handle keeps its variable,
  /// unshared in the function. Shape, dtype and device stay.
  std::vector<Tensor*> state = {};
  /// Whether the plan may keep tensors of host data and numbers drawn on the host; if false, an Error.
  bool constants = false;
  /// Kept signatures. A new one replaces the least recently used; the first time, stderr gets a warning.
  size_t signatures = 8;
  /// Checks a signature's first and then each `verify`-th replay: traces again without kernels, and differences such as
  /// `mask = other` are an Error. 0: no check. Builds without NDEBUG check all unless 0.
  size_t verify = 1000;
};

/// Counters of a compiled function.
struct CompileStats {
  uint64_t traces = 0;     ///< calls of the function
  uint64_t replays = 0;    ///< replays of a plan
  uint64_t verified = 0;   ///< replays checked by CompileOptions::verify
  uint64_t evictions = 0;  ///< plans replaced by new signatures
  size_t ops = 0;          ///< the last plan's kernels; a chain is one
  size_t bytes = 0;        ///< memory that it holds between calls
  /// Replays by a CUDA graph, from a signature's third call on.
  uint64_t graph_launches = 0;
  /// Ops recorded for graphs: all of a plan once, later those with moved tensors.
  uint64_t recorded_ops = 0;
  /// Why the last plan runs kernel by kernel, or empty.
  std::string why_no_graph = {};
};

namespace detail {
/// Call it before an action that replays would not repeat: an Error of `op` in a trace.
void forbid_in_trace(std::string_view op, std::string_view what);
/// Throws the Errors of an invalid TG_PASSES or TG_DUMP_PLANS, and makes the folder of the latter.
void check_planner();
template <class F> TensorFunction of_inputs(F f) {
  if constexpr (requires { f == nullptr; })
    if (f == nullptr) return {};
  return [f = std::move(f)](Inputs in) mutable { return std::vector<Tensor>{f(in[0])}; };
}
}  // namespace detail
/// Makes each compiled function trace again at its next call. Layers call it when merged, replaced or prepared for
/// evaluation. Call it after changing a flag or handle that a compiled function reads on the host. Thread-safe.
void structure_changed();

/// A compiled function. Copies share their plans; one thread at a time may call them.
class Compiled {
 public:
  /// Stores the function: each signature's first call compiles. Errors name `where`.
  explicit Compiled(TensorFunction, CompileOptions = {}, const std::source_location& where = {});

  /// Returns the function's results, without history for backward. The signature is the layouts and gradient flags of
  /// the inputs, the modes of the thread (NoGradScope, RecomputeScope, MatmulPrecisionScope) and, for inputs that need
  /// a gradient, their hooks and which are equal to each other or to a captured tensor.
  ///
  /// A replay reads the current values of captured tensors, by the variables that their handles had in the trace.
  /// Tensors that the function assigns, such as parameters, get new values, in place if the old ones have no other
  /// owner. The learning rate and step number of an Optimizer, and the generators of the options, advance with each
  /// call. Everything else that the function reads on the host is as in the trace: captured numbers, flags, and which
  /// tensor a handle has. After `mask = other` call structure_changed(); CompileOptions::verify detects a forgotten
  /// call.
  ///
  /// Inside an AnomalyScope, an ObserveScope, dry_run() or another trace, it calls the function itself.
  ///
  /// Errors: those of the function; host data without CompileOptions::constants; a rate or step number that is set or
  /// read inside; tensors of other threads; a read by the host; a result that still needs a gradient; random numbers
  /// from a generator outside of the options; a tensor that outlives the call without being a result, such as `h = h +
  /// x` of a captured h outside of CompileOptions::state; an input that the function updates, such as a parameter; a
  /// checked replay that differs, after which the next call is traced. After an Error no tensor is assigned, and step
  /// numbers and generators are as before; tensors that a replay updates in place may be half written, as without
  /// compile(). An Error names the line of compile().
  std::vector<Tensor> operator()(Inputs) const;
  /// Counters of all calls so far.
  const CompileStats& stats() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// compile(f)(x) returns f(x). From the second call of a signature on it takes less host time.
inline Compiled compile(TensorFunction f, CompileOptions o = {},
                        const std::source_location& where = std::source_location::current()) {
  return Compiled(std::move(f), std::move(o), where);
}

/// Tensor -> Tensor. With a parameter `auto`: a function of Inputs.
template <class F>
concept OneTensorFunction = !std::invocable<F&, Inputs> && requires(F& f, const Tensor& x) {
  { f(x) } -> std::convertible_to<Tensor>;
};
/// compile() for one tensor, without stats().
template <OneTensorFunction F>
auto compile(F f, CompileOptions o = {}, const std::source_location& where = std::source_location::current()) {
  return [g = Compiled(detail::of_inputs(std::move(f)), std::move(o), where)](const Tensor& x) {
    return g({&x, 1})[0];
  };
}

}  // namespace tg
