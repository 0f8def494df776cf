/// @file
/// TrainerState: all that training changes, as tensors and numbers. training_state() captures it and restore() sets it;
/// models/io/checkpoint.h writes it to a file. Trainer and custom training loops use them.
#pragma once
#include <tapegrad/models/optim/optimizer.h>
#include <tapegrad/models/train/log.h>

#include <optional>

namespace tg {

/// The state at the end of a step; training continues from it bit for bit. `data` and `dropout` are the generators of
/// the next batch and dropout masks.
struct TrainerState {
  int64_t step = 0;             ///< steps done
  int64_t optimizer_steps = 0;  ///< updates of the moments
  Rng data, dropout;
  /// "model.<name>" of each parameter, "<optimiser>.<name>" of each tensor of Optimizer::state(): "adamw.wte.weight.m"
  StateDict tensors;
  /// The last step's record if its validation has not run.
  std::optional<StepRecord> unvalidated = std::nullopt;
};

/// The state after `step` steps; later steps do not change it. All ranks call it for a sharded optimiser; only rank 0
/// gets the optimiser's tensors.
TrainerState training_state(int64_t step, const Params&, const Optimizer&, const Rng& data = {},
                            const Rng& dropout = {});
/// Sets parameters and optimiser from a state. All or nothing: an Error names the first tensor that is missing, unknown
/// or of another shape or dtype. The caller sets the generators. All ranks pass the whole state.
void restore(const TrainerState&, const Params&, Optimizer&);

}  // namespace tg
