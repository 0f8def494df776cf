/// @file
/// compile(): plans a function of tensors once and replays the plan. The function is called once for each signature,
/// and its ops are planned as a whole. Later calls skip the function, but for checks (CompileOptions::verify): no
/// shapes are inferred, no nodes are made and no memory is allocated, and on Device::cuda() they are one launch of a
/// CUDA graph. It helps steps of many small ops, which spend most of their time on the host. It does not compile
/// kernels: ops run their usual kernels, so results are the same bits, except where a rule of ops/rewrite_rules.cpp
/// says otherwise.
#pragma once
#include <tapegrad/core/rng.h>
#include <tapegrad/core/tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tg {

/// Options of compile().
struct CompileOptions {
  /// The generators that the function draws from. A replay draws from their current state and advances them as the
  /// function would.
  std::vector<Rng*> generators = {};
  /// Tensors that the function gives another value by `h = ...`, as its state from call to call. A replay does the
  /// same: the handle keeps its variable, whose value changes as by assign(). What is assigned has the shape, dtype and
  /// device of what was there.
  std::vector<Tensor*> state = {};
  /// Whether the function may make tensors of host data and draw numbers on the host: they are the same in every call,
  /// and the plan keeps those of the traced one. Otherwise they are an Error.
  bool constants = false;
  /// The number of signatures that are kept. A new one replaces the least recently used; the first time, a line on
  /// stderr says so.
  size_t signatures = 8;
  /// The first replay of a signature, and each `verify`-th after it, is checked: the function is traced again, which
  /// runs no kernel, and an Error says what it would do differently, as after `mask = other` or with another captured
  /// number. 0: no check. In a build without NDEBUG each replay is checked, but for 0.
  size_t verify = 1000;
};

/// Counters of a compiled function.
struct CompileStats {
  uint64_t traces = 0;     ///< calls that ran the function
  uint64_t replays = 0;    ///< calls that replayed a plan
  uint64_t verified = 0;   ///< replays that were checked, by CompileOptions::verify
  uint64_t evictions = 0;  ///< plans that a new signature has replaced
  size_t ops = 0;          ///< kernels of the plan that ran last; a fused chain counts once
  size_t bytes = 0;        ///< memory that this plan holds between calls
  /// Replays that were one launch of a CUDA graph. They begin with the third call of a signature.
  uint64_t graph_launches = 0;
  /// Ops that were recorded for these graphs: all of a plan once, and later those whose tensors lie elsewhere.
  uint64_t recorded_ops = 0;
  /// Why the plan that ran last runs kernel by kernel, and will go on so; empty if there is no reason.
  std::string why_no_graph = {};
};

namespace detail {
/// Before what a replay would not do again: an Error in the name of `op` while a function is traced.
void forbid_in_trace(std::string_view op, std::string_view what);
/// An Error now if TG_PASSES or TG_DUMP_PLANS would be one when a function is planned. Makes the folder of the latter.
void check_planner();
}  // namespace detail

/// Says that functions make other ops from now on: each compiled function is traced again at its next call. Layers call
/// it when they are merged, replaced or prepared for evaluation. Call it after changing a flag or a handle that a
/// compiled function reads on the host. From any thread.
void structure_changed();

/// A compiled function. Copies share their plans. One thread at a time may call it.
class Compiled {
 public:
  /// Compiles nothing yet: the first call of each signature does. Errors name `where`, if it is a place.
  explicit Compiled(TensorFunction, CompileOptions = {}, const std::source_location& where = {});

  /// Returns what the function would return, without a history for backward. The signature is the layouts and gradient
  /// flags of the inputs, and the modes of the thread (NoGradScope, RecomputeScope, MatmulPrecisionScope).
  ///
  /// A replay reads the current values of tensors that the function captures: of the variables that its handles had
  /// when it was traced. Tensors that the function assigns, such as parameters, get their new values, in place if
  /// nobody else holds the old ones. The learning rate and step number of an Optimizer, and the generators of the
  /// options, advance from call to call. Everything else that the function reads on the host is as in the traced call:
  /// numbers that it captures, flags, and which tensor a handle has. After `mask = other` call structure_changed();
  /// CompileOptions::verify finds what was forgotten.
  ///
  /// Inside an AnomalyScope, an ObserveScope, dry_run() or the trace of another function, the function itself is
  /// called.
  ///
  /// Errors: those of the function; host data without CompileOptions::constants; a change of the learning rate inside;
  /// a read by the host while it is traced; a result that still needs a gradient; random numbers from a generator that
  /// the options do not name; a tensor that the function makes and that outlives the call without being a result, such
  /// as `h = h + x` of a captured h that is no CompileOptions::state; an input that is a variable which the function
  /// updates, as a parameter is by a step; a replay that is checked and differs, after which the next call is traced.
  /// After an Error no tensor is assigned, and step numbers and generators are as before; tensors that a replay updates
  /// in place may be half written, as without compile(). An Error names the line where the function was compiled.
  std::vector<Tensor> operator()(Inputs) const;
  /// Counters of all calls so far.
  const CompileStats& stats() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // copies share what was traced; one thread at a time
};

/// compile(f)(x) returns what f(x) returns. From the second call of a signature on it takes less time of the host.
inline Compiled compile(TensorFunction f, CompileOptions o = {},
                        const std::source_location& where = std::source_location::current()) {
  return Compiled(std::move(f), std::move(o), where);
}

}  // namespace tg
