/// @file
/// Trainer: the training loop of any model (forward, backward, an optimiser with warm-up and cosine) and its validation
/// loss. It prints and writes nothing: callers get a record of each step (log.h), and its state for a file
/// (models/io/checkpoint.h). `tapegrad train` uses it, and programs of one's own.
#pragma once
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/optim/schedule.h>
#include <tapegrad/models/train/state.h>
#include <tapegrad/models/train/step.h>

#include <functional>
#include <memory>
#include <optional>

namespace tg {

/// The model with its Linear layers as config.linear says; plain leaves them as they are. Trainer does it itself. An
/// Error if the model has no linears().
Model with_linears(Model, const TrainConfig& config);
/// How evaluate() runs.
struct EvaluateOptions {
  Device device = {};                 ///< of the model
  std::optional<DType> compute = {};  ///< ForwardOptions::compute
  std::function<bool()> stop = {};    ///< asked before each batch; true gives the rest up
  /// Ranks that share the batches: each computes some, and all get the result, whose bits do not depend on them. stop()
  /// must give all of them the same answers.
  std::shared_ptr<Communicator> comm = Communicator::self();
};
/// The result of evaluate().
struct Evaluated {
  double loss = 0;       ///< mean over the targets
  int64_t targets = 0;   ///< number of kept targets
  bool stopped = false;  ///< whether stop() gave it up; loss is then that of the batches before
};
/// The loss of a model over batches(0), batches(1), ... until one is empty, without dropout and without gradients. An
/// Error if no target is kept at all.
Evaluated evaluate(const Model&, const std::function<std::optional<Batch>(int64_t)>& batches,
                   const EvaluateOptions& = {});

/// Trains a model. Equal seeds give equal losses, bit for bit, on any number of threads. One thread at a time may use a
/// Trainer; trainers in different threads are independent.
class Trainer {
 public:
  /// Trains the trainable parameters of `params`, which are those of `model` or of its adapters, on the batches of the
  /// source. config.batch and config.val_fraction are not used. An Error if a field is wrong.
  ///
  /// Several ranks train one model: each makes its part of the config.accumulate micro-batches of a step, and all make
  /// the same update. They need the same model, data and config. Steps have the bits of one process if each rank has
  /// one micro-batch; else the sums of gradients are in another order. An Error unless their number divides accumulate.
  Trainer(const Model& model, const Params& params, BatchSource data, const TrainConfig&,
          std::shared_ptr<Communicator> = Communicator::self());
  /// The same, on config.batch windows of config.window_in(model.context()) tokens. The last config.val_fraction of the
  /// data is for validation; 0 means none. An Error if the model has no context(), a token is outside its vocabulary,
  /// the training part has fewer tokens than a window and one, or the validation part fewer than 2.
  Trainer(const Model& model, const Params& params, const TokenData& data, const TrainConfig&,
          std::shared_ptr<Communicator> = Communicator::self());

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
  /// The state now: later steps do not change it. With config.shard_optimizer all ranks call it, and rank 0 alone gets
  /// the optimiser's.
  TrainerState state() const;
  /// Continues from a state. Given the same model, data and configuration, the same steps follow, bit for bit, as where
  /// it was taken. All or nothing: an Error names the first tensor that is missing, unknown or of another shape or
  /// dtype, or a step beyond config.max_steps.
  void load_state(const TrainerState&);

  /// Mean loss over the targets of the whole validation part, without dropout: in nats per token of language models. An
  /// Error if there is no such part.
  double evaluate() const;

  const TrainConfig& config() const { return config_; }
  /// Counters of the compiled step; null without config.compile.
  const CompileStats* compiled() const { return step_->compiled(); }

 private:
  MicroBatches next_batches();
  [[noreturn]] void explain(std::string_view what, double x, const StepRecord&,
                            const std::function<void()>& again) const;
  [[noreturn]] void explain(const std::string& what, const StepRecord&, const std::function<void()>& again) const;
  int64_t update(StepRecord&);  // returns the number of targets
  /// The validation loss as evaluate() computes it; nothing if stop(), asked between batches, gave it up.
  std::optional<double> evaluate(const std::function<bool()>& stop) const;  // empty: it was given up

  Model model_;
  Params params_;
  TrainConfig config_;
  std::shared_ptr<Communicator> comm_;
  BatchSource data_;
  Rng data_rng_;
  Schedule schedule_;
  std::unique_ptr<TrainStep> step_;
  int64_t steps_ = 0;
  std::optional<StepRecord> unvalidated_;
};

}  // namespace tg
