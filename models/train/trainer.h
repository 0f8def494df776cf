/// @file
/// Trainer: the training loop of any model and its validation. It prints and writes nothing: callers get step records
/// (log.h) and a state to save (models/io/checkpoint.h).
#pragma once
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/optim/schedule.h>
#include <tapegrad/models/train/state.h>
#include <tapegrad/models/train/step.h>

#include <functional>
#include <memory>
#include <optional>

namespace tg {

namespace detail {
/// Makes the Linear layers config.linear, or splits their weights in `params`, which nothing else may read.
/// Throws if the model has no linears(), or nothing to split.
Model with_linears(Model, const Params& params, const TrainConfig& config);
}  // namespace detail
/// How validation_loss() runs.
struct ValidationOptions {
  Device device = {};                 ///< device of the model
  std::optional<DType> compute = {};  ///< ForwardOptions::compute
  std::function<bool()> stop = {};    ///< asked before each batch; true skips the rest
  /// Ranks that share the batches; all get the same bits, whatever their number. stop() must answer the same on all.
  std::shared_ptr<Communicator> comm = Communicator::self();
};
/// Result of validation_loss().
struct ValidationLoss {
  double loss = 0;  ///< mean over the targets
  int64_t targets = 0;
  bool stopped = false;  ///< stop() returned true; loss is that of the earlier batches
};
/// Loss over batches(0), batches(1), ... until one is empty, without dropout. Throws if no target is kept.
ValidationLoss validation_loss(const Model&, const std::function<std::optional<Batch>(int64_t)>& batches,
                               const ValidationOptions& = {});

/// Trains a model. Equal seeds give equal losses, bit for bit, on any number of threads. For one thread at a time.
class Trainer {
 public:
  /// Trains the trainable parameters of `params` (the model's or its adapters') on the source's batches, ignoring
  /// config.batch and config.val_fraction. Throws if a field is wrong.
  ///
  /// Several ranks train one model: each computes its share of config.accumulate micro-batches, and all make the same
  /// update. Model, data and config must be equal. The bits are those of one process if each rank has one micro-batch,
  /// else gradients are summed in another order. Throws unless their number divides accumulate.
  Trainer(const Model& model, const Params& params, BatchSource data, const TrainConfig&,
          std::shared_ptr<Communicator> = Communicator::self());
  /// Trains on config.batch windows of config.window_in(model.context()) tokens. The last config.val_fraction of the
  /// data is for validation; 0 means none. Throws if the model has no context(), a token is outside its vocabulary, the
  /// training split has fewer than window + 1 tokens, or the validation split fewer than 2.
  Trainer(const Model& model, const Params& params, const TokenData& data, const TrainConfig&,
          std::shared_ptr<Communicator> = Communicator::self());

  /// Runs one step, and a validation if due. Throws after the last step. If the loss or gradient norm is not finite, an
  /// Error of kind non_finite names the step, the value, and the first op that made it. An Error before the update
  /// changes nothing.
  StepRecord step();
  /// Runs step(), asking stop() between validation batches. If true, returns nothing: the update is done, and the next
  /// call, also after a resume, validates and returns the record.
  std::optional<StepRecord> step(const std::function<bool()>& stop);
  bool done() const { return steps_ == config_.max_steps && !unvalidated_; }
  void run(const std::function<void(const StepRecord&)>& on_step = {});

  int64_t steps() const { return steps_; }
  /// Current state. With config.shard_optimizer all ranks call it, and only rank 0 gets the optimiser's tensors.
  TrainerState state(const StateDict& own = {}) const;
  /// Continues from a state: the same model, data and configuration give the same steps, bit for bit. All or nothing:
  /// Errors are those of restore(), and a step beyond config.max_steps.
  void load_state(const TrainerState&, const StateDict& own = {});

  /// Mean loss over the targets of the validation split, nats per token for language models. Throws without a split.
  double validation_loss() const;

  const TrainConfig& config() const { return config_; }
  /// Counters of the compiled step; null without config.compile.
  const CompileStats* compiled() const { return step_->compiled(); }

 private:
  [[noreturn]] void explain(const std::string& what, const StepRecord&, const std::function<void()>& again) const;
  int64_t update(StepRecord&);
  /// Validation loss as validation_loss() computes it; empty if stop() ended it.
  std::optional<double> validation_loss(const std::function<bool()>& stop) const;

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
