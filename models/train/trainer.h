/// @file
/// Trainer: the training loop of a Gpt (forward, backward, AdamW with warm-up and cosine) and its validation loss.
/// Prints and writes nothing: callers get a record of each step (log.h), and its state for a file (io/checkpoint.h).
/// Users: `tapegrad train`, and programs of one's own.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/models/optim/schedule.h>
#include <tapegrad/models/train/config.h>
#include <tapegrad/models/train/log.h>

#include <functional>
#include <span>

namespace tg {

/// All that steps change, at the end of a step: what a Trainer needs to go on as if it had never stopped.
struct TrainerState {
  int64_t step = 0;             ///< steps done
  int64_t optimizer_steps = 0;  ///< updates that the moments have seen
  Rng data, dropout;  ///< what the next batch and the next masks are drawn from; data is the place in the data
  StateDict tensors;  ///< "model.<name>" of each parameter; "adamw.<name>.m", ".v" of each trained one
};

/// Logits (B, T, V) of tokens (B, T), as a step of training computes them: with dropout, in config.dtype, and with what
/// backward needs kept as config.recompute says.
Tensor training_logits(const Gpt&, const TrainConfig& config, const Tensor& tokens, Rng& dropout);
/// What the optimiser gets in a step of these micro-batches: the mean loss, its gradients by all parameters, and their
/// norm over those that are trained.
struct StepGradients {
  double loss;
  Tensor norm;
  GradMap grads;
};
StepGradients step_gradients(const Gpt&, const Params&, const TrainConfig&, std::span<const Batch>, Rng& dropout);

/// Same seed, same losses, bit for bit, on any number of threads. One trainer belongs to one thread at a time; trainers
/// in different threads are independent.
class Trainer {
 public:
  /// Trains the trainable parameters of `params`, which are those of `model`. The last config.val_fraction of the data
  /// is for validation; 0 means none. An Error when a field is wrong, a token is outside the model's vocabulary, or the
  /// training part has no context + 1 tokens or the validation part no 2.
  Trainer(const Gpt& model, const Params& params, const TokenData& data, const TrainConfig&);

  /// One step, with a validation when config.eval_every or the last step asks for it. An Error after the last step.
  /// When the loss or the norm of the gradient is not finite, the step is computed once more with every op checked, and
  /// an Error of kind non_finite names the step, the value, and the first op that made it with its scope; on any Error
  /// on the way to the update the trainer is as it was before the step.
  StepRecord step();
  bool done() const { return steps_ == config_.max_steps; }
  /// All steps that are left; on_step sees each record.
  void run(const std::function<void(const StepRecord&)>& on_step = {});

  int64_t steps() const { return steps_; }  ///< done so far
  /// The values at this moment: later steps do not change them.
  TrainerState state() const;
  /// Goes on from a state: the same steps follow, bit for bit, as where it was taken, given the same model, data and
  /// configuration. All or nothing: an Error names the first tensor that is missing, unknown or of another shape or
  /// dtype, or a step beyond config.max_steps.
  void load_state(const TrainerState&);

  /// Mean cross-entropy over the whole validation split in order, in nats per token, without dropout. An Error when
  /// there is no such split.
  double evaluate() const;

  const TrainConfig& config() const { return config_; }
  int64_t train_tokens() const { return data_.train.size(); }
  int64_t val_tokens() const { return data_.val.size(); }

 private:
  StepGradients gradients();  // draws the batches of a step
  [[noreturn]] void explain(std::string_view what, double x, const StepRecord&,
                            const std::function<void()>& again) const;
  void update(StepRecord&);

  Gpt model_;
  Params params_;
  TrainConfig config_;
  TokenData::Split data_;
  Batches batches_;
  Rng dropout_;
  Schedule schedule_;
  AdamW optimizer_;
  int64_t steps_ = 0;
};

}  // namespace tg
