/// @file
/// TrainerState: all that training changes, as tensors and numbers. training_state() takes it from parameters and an
/// optimiser, and restore() puts it back; models/io/checkpoint.h writes it to a file. Trainer uses them, and training
/// loops of one's own.
#pragma once
#include <tapegrad/models/optim/optimizer.h>
#include <tapegrad/models/train/log.h>

#include <optional>

namespace tg {

/// All that steps change, at the end of a step: what a training needs to continue as if it had never stopped. `data`
/// and `dropout` are the generators of the next batch and the next dropout masks.
struct TrainerState {
  int64_t step = 0;             ///< steps done
  int64_t optimizer_steps = 0;  ///< updates that the moments have seen
  Rng data, dropout;
  /// "model.<name>" of each parameter, and "<optimiser>.<name>" of each tensor of Optimizer::state():
  /// "adamw.wte.weight.m"
  StateDict tensors;
  /// The record of the last step, if its validation is still to come.
  std::optional<StepRecord> unvalidated = std::nullopt;
};

/// The state now, after `step` steps: later steps do not change it. Of a sharded optimiser all ranks call it, and rank
/// 0 alone has that of the optimiser.
TrainerState training_state(int64_t step, const Params&, const Optimizer&, const Rng& data = {},
                            const Rng& dropout = {});
/// Gives parameters and optimiser the values of a state. All or nothing: an Error names the first tensor that is
/// missing, unknown or of another shape or dtype. The generators are the caller's to set. All ranks have it whole.
void restore(const TrainerState&, const Params&, Optimizer&);

}  // namespace tg
