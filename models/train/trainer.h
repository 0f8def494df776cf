// Trainer: the training loop of a Gpt (forward, backward, AdamW with warm-up and cosine) and its validation loss.
// Prints and writes nothing: callers get a record of each step (log.h). Users: `tapegrad train`, and programs of one's
// own.
#pragma once
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/models/optim/schedule.h>
#include <tapegrad/models/train/config.h>
#include <tapegrad/models/train/log.h>

#include <functional>

namespace tg {

// Same seed, same losses, bit for bit, on any number of threads. One trainer belongs to one thread at a time; trainers
// in different threads are independent.
class Trainer {
 public:
  // Trains the trainable parameters of `params`, which are those of `model`. The last config.val_fraction of the data
  // is for validation; 0 means none. An Error when a field is wrong, a token is outside the model's vocabulary, or the
  // training part has no context + 1 tokens or the validation part no 2.
  Trainer(const Gpt& model, const Params& params, const TokenData& data, const TrainConfig&);

  // One step, with a validation when config.eval_every or the last step asks for it. An Error after the last step, and
  // when the loss is not finite: the parameters are then those before the step.
  StepRecord step();
  bool done() const { return steps_ == config_.max_steps; }
  // All steps that are left; on_step sees each record.
  void run(const std::function<void(const StepRecord&)>& on_step = {});

  // Mean cross-entropy over the whole validation split in order, in nats per token, without dropout. An Error when
  // there is no such split.
  double evaluate() const;

  const TrainConfig& config() const { return config_; }
  int64_t train_tokens() const { return data_.train.size(); }
  int64_t val_tokens() const { return data_.val.size(); }

 private:
  void update(StepRecord&);

  Gpt model_;
  TrainConfig config_;
  TokenData::Split data_;
  Batches batches_;
  Rng dropout_;
  Schedule schedule_;
  AdamW optimizer_;
  int64_t steps_ = 0;
};

}  // namespace tg
