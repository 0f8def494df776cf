/// @file
/// TrainStep: one training step, op by op or compiled. Memory plans and work counts also use its loss and gradients.
#pragma once
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/models/train/accumulate.h>
#include <tapegrad/models/train/config.h>

#include <memory>
#include <optional>

namespace tg {

/// Optimiser's input of a step.
struct StepGradients {
  /// Mean over the targets of all micro-batches, 0-d f64; in nats per token for language models.
  Tensor loss;
  Tensor norm;    ///< global norm of the gradients, 0-d f32 or f64
  GradMap grads;  ///< gradients of the loss
};
namespace detail {
/// Loss of a batch in training: with dropout, in config.dtype, with config.recompute.
Tensor training_loss(const Model&, const TrainConfig& config, const Batch&, Rng& dropout);
/// Loss and gradients of a step's micro-batches. Micro-batch i draws from dropout[i]. For a shard() they are summed
/// over all ranks; with a partition, only this rank's shard.
StepGradients step_gradients(const Model&, const Params&, const TrainConfig&, const MicroBatches&,
                             std::span<Rng> dropout, const std::shared_ptr<Communicator>& = Communicator::self(),
                             const Partition* = nullptr);
/// Options for make_optimizer()'s step: clipping by `norm` as configured.
StepOptions step_options(const TrainConfig&, const Tensor& norm);
}  // namespace detail

/// A repeatable training step. With config.compile it is one tg::compile()d function, bit-identical to separate ops.
class TrainStep {
 public:
  /// Needs a valid config and a model of with_linears(). Ranks are as in Trainer.
  TrainStep(const Model&, const Params&, const TrainConfig&, std::shared_ptr<Communicator> = Communicator::self());
  TrainStep(const TrainStep&) = delete;  // the compiled function refers to it
  TrainStep& operator=(const TrainStep&) = delete;

  /// Results of a step before its update.
  struct Outcome {
    double loss, grad_norm;
    bool finite() const;
  };
  /// Makes a step at this learning rate. If the loss or the norm is not finite, nothing is updated. An Error changes
  /// nothing, except in a compiled step on a GPU with an index out of range: the host learns of it after the update.
  Outcome run(const MicroBatches&, double lr);
  StepGradients gradients(const MicroBatches&);
  /// Recomputes the step without the other ranks, after an Error of this rank, for the ops' messages.
  void search(const MicroBatches&);

  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  /// Counters of the compiled function; null without one.
  const CompileStats* compiled() const { return compiled_ ? &compiled_->stats() : nullptr; }

  /// Generates the next step's dropout: micro-batch 0 uses it, micro-batch i split(i) at the same offset. A step
  /// advances it by the largest draw.
  Rng dropout;

 private:
  std::vector<Tensor> traced(Inputs);
  MicroBatches begin(const MicroBatches&);  // batches of this rank; sets their generators
  void end_draws();
  Outcome run_compiled(const MicroBatches&);
  void move_to_device(const Tensor&, Tensor& to) const;
  Model model_;
  Params params_;
  TrainConfig config_;
  std::shared_ptr<Communicator> comm_;
  std::vector<Rng> draws_;  // indexed by micro-batch
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<Compiled> compiled_;
  std::vector<Tensor> inputs_;  // inputs of the compiled function, on the device
};

}  // namespace tg
