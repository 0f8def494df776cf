/// @file
/// compile(): a function of tensors is called once for each signature, its ops are planned as a whole, and later calls
/// replay them without the function: no shapes are inferred, no nodes made, no memory asked for; on Device::cuda() they
/// become one launch of a graph. For steps of many small ops, where all that is most of the time. Not a compiler of
/// kernels: ops run the kernels that they always run, so results are those of calling the function, bit for bit, but
/// where a rule of ops/rewrite_rules.cpp says otherwise.
#pragma once
#include <tapegrad/core/rng.h>
#include <tapegrad/core/tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tg {

using TensorFunction = std::function<std::vector<Tensor>(Inputs)>;

struct CompileOptions {
  /// What the function draws random numbers from. A replay goes on where each stands, and moves it as the function
  /// would.
  std::vector<Rng*> generators = {};
  /// How many signatures are kept; the one that was used longest ago makes room.
  size_t signatures = 8;
};

struct CompileStats {
  uint64_t traces = 0;   ///< calls of the function
  uint64_t replays = 0;  ///< calls that did without
  size_t ops = 0;        ///< kernels run by the program that was used last, chains counted once
  size_t bytes = 0;      ///< of its memory that stays between calls
  /// Replays that were one launch of a recorded graph: on Device::cuda(), from the third call of a signature on.
  uint64_t graph_launches = 0;
  /// Of the program that was used last: why its calls run kernel by kernel and will go on so. Empty: there is no
  /// reason.
  std::string why_no_graph = {};
};

class Compiled {
 public:
  explicit Compiled(TensorFunction, CompileOptions = {});

  /// What the function would return, off the tape. The signature is the layouts and gradient flags of the inputs, and
  /// the thread's modes (NoGradScope, RecomputeScope, MatmulPrecisionScope). Tensors that the function captures are
  /// read where they stand now, and variables that it assigns (parameters of an optimiser's step) take their new
  /// values, in place where nobody else holds the old ones; what it makes from host data, or reads of other objects, is
  /// as it was when it was traced. The rate and the count of an AdamW, and the generators of the options, go on from
  /// call to call. Inside an AnomalyScope, ObserveScope or dry_run(), and within another function that is traced, the
  /// function itself is called. Errors: those of the function; a host read while it is traced; a result that still
  /// needs a gradient; random numbers from a generator that the options do not name; a tensor that it makes and keeps.
  /// When an op of a replay fails, no variable is assigned; those that were written in place may be half written, as
  /// when an op of a step fails.
  std::vector<Tensor> operator()(Inputs) const;
  std::vector<Tensor> operator()(std::initializer_list<Tensor> in) const {
    return (*this)(Inputs(in.begin(), in.size()));
  }
  const CompileStats& stats() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // copies share what was traced; one thread at a time
};

/// compile(f)(x) equals f(x), and from the second call of a signature on takes less time of the host.
inline Compiled compile(TensorFunction f, CompileOptions o = {}) { return Compiled(std::move(f), std::move(o)); }

}  // namespace tg
