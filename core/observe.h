/// @file
/// ObserveScope: shows a program the result of each op, for comparisons (models/tools/compare.h) and statistics of
/// activations.
#pragma once
#include <tapegrad/core/scope.h>
#include <tapegrad/core/tensor.h>

#include <functional>

namespace tg {

/// One output of one op.
struct Observed {
  /// Scope of the call, "gpt.h.3.mlp.fc"; a gradient op has its forward op's scope.
  const Scope* scope;
  std::string_view op;
  size_t output;
  const Tensor& value;
};
/// Called for each output.
using Observer = std::function<void(const Observed&)>;

/// `see` gets each output of each op that the thread calls, in order, after the call.
/// It skips views, in-place updates and all-reduces. An op that a backend composes from simpler ops counts as one,
/// so the order is the same on every backend. Ops that `see` calls are not observed.
///
/// Use it in eager runs: a lazy value is computed when `see` reads it. A tensor that `see` keeps holds its memory.
/// Scopes nest, and only the innermost is called.
class ObserveScope {
 public:
  [[nodiscard]] explicit ObserveScope(Observer see);

 private:
  const Observer see_;
  ScopedValue<const Observer*> observing_;
};

}  // namespace tg
