/// @file
/// ObserveScope: sees what each op makes, with the scope and the name of the op, as a program runs. For looking into a
/// model from outside (compare, statistics of activations); not for errors (core/error.h) and not for changing values.
#pragma once
#include <tapegrad/core/scope.h>
#include <tapegrad/core/tensor.h>

#include <functional>

namespace tg {

struct Observed {
  const Scope* scope;  ///< where the op was emitted: "gpt.h.3.mlp.fc"; of a gradient op, that of its forward op
  std::string_view op;
  size_t output;  ///< which of the op's outputs
  const Tensor& value;
};
using Observer = std::function<void(const Observed&)>;

/// During its life, `see` gets each output of each op that the calling thread emits, in order, right after it was made.
/// Views (they make nothing) and updates in place are left out. An op that a backend composes out of plainer ones
/// counts as one op, so the order is the same on every backend. What `see` emits itself is not observed. For eager
/// runs: a lazy value is computed when `see` reads it. A handle that it keeps keeps the memory too, and later ops then
/// do not reuse it. Scopes nest; the innermost sees.
class ObserveScope {
 public:
  explicit ObserveScope(Observer see);

 private:
  const Observer see_;
  ScopedValue<const Observer*> observing_;
};

}  // namespace tg
