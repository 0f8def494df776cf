/// @file
/// Trainer: the training loop of a Gpt (forward, backward, an optimiser with warm-up and cosine) and its validation
/// loss. It prints and writes nothing: callers get a record of each step (log.h), and its state for a file
/// (models/io/checkpoint.h). `tapegrad train` uses it, and programs of one's own.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/optim/schedule.h>
#include <tapegrad/models/train/config.h>
#include <tapegrad/models/train/log.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>

namespace tg {

/// All that steps change, at the end of a step: what a Trainer needs to continue as if it had never stopped. `data` and
/// `dropout` are the generators of the next batch and the next dropout masks.
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

/// Logits (B, T, V) of tokens (B, T), as a step of training computes them: with dropout, in config.dtype, and with
/// activations kept or recomputed as config.recompute says.
Tensor training_logits(const Gpt&, const TrainConfig& config, const Tensor& tokens, Rng& dropout);
/// What the optimiser gets in a step.
struct StepGradients {
  double loss;    ///< mean over all micro-batches, in nats per token
  Tensor norm;    ///< norm of the gradients of the trained parameters, 0-d f32
  GradMap grads;  ///< gradients of the loss
};
/// Loss and gradients of the micro-batches of a step.
StepGradients step_gradients(const Gpt&, const Params&, const TrainConfig&, std::span<const Batch>, Rng& dropout);

/// Trains a Gpt. Equal seeds give equal losses, bit for bit, on any number of threads. One thread at a time may use a
/// Trainer; trainers in different threads are independent.
class Trainer {
 public:
  /// Trains the trainable parameters of `params`, which are those of `model`. The last config.val_fraction of the data
  /// is for validation; 0 means none. An Error if a field is wrong, a token is outside the model's vocabulary, the
  /// training part has fewer than context + 1 tokens, or the validation part fewer than 2.
  Trainer(const Gpt& model, const Params& params, const TokenData& data, const TrainConfig&);

  /// Runs one step, and a validation if config.eval_every asks for it or the step is the last. An Error after the last
  /// step. If the loss or the norm of the gradients is not finite, the step is computed once more with every op
  /// checked; an Error of kind non_finite then names the step, the value, and the first op that made it with its scope.
  /// On any Error before the update, the trainer is as it was before the step.
  StepRecord step();
  /// Runs one step as step() does, and asks stop() between the batches of a validation whether to give it up. If so, it
  /// returns nothing: the update is done, and the next call, of this trainer or of one that continues from its state,
  /// makes the validation and returns the record.
  std::optional<StepRecord> step(const std::function<bool()>& stop);
  /// Whether all steps and their validations are done.
  bool done() const { return steps_ == config_.max_steps && !unvalidated_; }
  /// Runs all remaining steps; on_step sees each record.
  void run(const std::function<void(const StepRecord&)>& on_step = {});

  /// The number of steps done.
  int64_t steps() const { return steps_; }
  /// The state now: later steps do not change it.
  TrainerState state() const;
  /// Continues from a state. Given the same model, data and configuration, the same steps follow, bit for bit, as where
  /// it was taken. All or nothing: an Error names the first tensor that is missing, unknown or of another shape or
  /// dtype, or a step beyond config.max_steps.
  void load_state(const TrainerState&);

  /// Mean cross-entropy over the whole validation split in order, in nats per token, without dropout. An Error if there
  /// is no such split.
  double evaluate() const;

  const TrainConfig& config() const { return config_; }
  /// The number of tokens to train on.
  int64_t train_tokens() const { return data_.train.size(); }
  /// The number of tokens to validate on.
  int64_t val_tokens() const { return data_.val.size(); }

 private:
  StepGradients gradients();  // draws the batches of a step
  [[noreturn]] void explain(std::string_view what, double x, const StepRecord&,
                            const std::function<void()>& again) const;
  void update(StepRecord&);
  /// The validation loss as evaluate() computes it; nothing if stop(), asked between batches, gave it up.
  std::optional<double> evaluate(const std::function<bool()>& stop) const;  // empty: it was given up

  Gpt model_;
  Params params_;
  TrainConfig config_;
  TokenData::Split data_;
  Batches batches_;
  Rng dropout_;
  Schedule schedule_;
  std::unique_ptr<Optimizer> optimizer_;
  int64_t steps_ = 0;
  std::optional<StepRecord> unvalidated_;
};

}  // namespace tg
