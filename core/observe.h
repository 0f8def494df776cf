/// @file
/// ObserveScope: shows a program the result of each op, with the op's scope and name, while a model runs. It serves
/// comparisons (models/train/compare.h) and statistics of activations. It is not for errors (core/error.h), and cannot
/// change values.
#pragma once
#include <tapegrad/core/scope.h>
#include <tapegrad/core/tensor.h>

#include <functional>

namespace tg {

/// One output of one op.
struct Observed {
  const Scope* scope;  ///< where the op was called: "gpt.h.3.mlp.fc"; for a gradient op, the scope of its forward op
  std::string_view op;
  size_t output;        ///< number of the output of that op
  const Tensor& value;  ///< the output
};
/// The function that is called for each output.
using Observer = std::function<void(const Observed&)>;

/// While it lives, `see` gets each output of each op that the calling thread calls, in order, right after it was made.
/// Views, in-place updates and sums over ranks are left out. An op that a backend composes from simpler ops counts as
/// one, so the order is the same on every backend. Ops that `see` calls itself are not observed.
///
/// It is for eager runs: a lazy value is computed when `see` reads it. A tensor that `see` keeps holds its memory,
/// which later ops then cannot reuse. Scopes nest, and only the innermost is called.
class ObserveScope {
 public:
  explicit ObserveScope(Observer see);

 private:
  const Observer see_;
  ScopedValue<const Observer*> observing_;
};

}  // namespace tg
