/// @file
/// TrainerState: all that training changes. training_state() captures it and restore() sets it.
#pragma once
#include <tapegrad/models/optim/optimizer.h>
#include <tapegrad/models/train/log.h>

#include <optional>

namespace tg {

/// State after a step. `data` and `dropout` generate the next batch and masks.
struct TrainerState {
  int64_t step = 0;             ///< steps done
  int64_t optimizer_steps = 0;  ///< updates of the moments
  Rng data, dropout;
  /// "model.<name>" of parameters, "<optimiser>.<name>" of Optimizer::state() (adamw.wte.weight.m), "own.<name>"
  StateDict tensors;
  std::optional<StepRecord> unvalidated = std::nullopt;  ///< the last step's record if its validation has not run
};

/// The state after `step` steps; later steps leave it unchanged. Sharded: as Optimizer::state(). `own`: tensors of the
/// program. An Error for one that is empty or has no name.
TrainerState training_state(int64_t step, const Params&, const Optimizer&, const Rng& data = {},
                            const Rng& dropout = {}, const StateDict& own = {});
/// Sets parameters, optimiser and the tensors of `own` from a whole state on all ranks. Moments may change between f32
/// and bf16. All or nothing: an Error names the first tensor that is missing, unknown, of another shape or dtype, or
/// that cannot be split. The caller sets the generators.
void restore(const TrainerState&, const Params&, Optimizer&, const StateDict& own = {});

}  // namespace tg
