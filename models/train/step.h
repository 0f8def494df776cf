/// @file
/// TrainStep: one step of training, op by op or as one compiled function. Its parts, the loss and the gradients, serve
/// what plans memory and counts work. Trainer uses it.
#pragma once
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/models/train/accumulate.h>
#include <tapegrad/models/train/config.h>

#include <functional>
#include <memory>
#include <optional>

namespace tg {

/// The loss of a batch as a step of training computes it: with dropout, in config.dtype, and with activations kept or
/// recomputed as config.recompute says.
Tensor training_loss(const Model&, const TrainConfig& config, const Batch&, Rng& dropout);
/// What the optimiser gets in a step.
struct StepGradients {
  Tensor loss;    ///< mean over the targets of all micro-batches, 0-d f64; of language models in nats per token
  Tensor norm;    ///< norm of the gradients of the trained parameters, 0-d f32 or f64
  GradMap grads;  ///< gradients of the loss
};
/// Loss and gradients of the micro-batches of a step. Micro-batch i draws its dropout from dropout[i]; of a shard() of
/// them, the sums over all ranks, with a partition what this rank owns of the gradients.
StepGradients step_gradients(const Model&, const Params&, const TrainConfig&, const MicroBatches&,
                             std::span<Rng> dropout, const std::shared_ptr<Communicator>& = Communicator::self(),
                             const Partition* = nullptr);
/// How the optimiser of make_optimizer() takes them: clipped as the config says, by their norm.
StepOptions step_options(const TrainConfig&, const Tensor& norm);

/// A step of training of some parameters, again and again. With config.compile forward, backward, clipping and the
/// update are one tg::compile()d function, whose bits are those of the ops one by one.
class TrainStep {
 public:
  /// The config is checked, and the model's layers are as config.linear says. Each rank takes its part of the
  /// micro-batches of a step, and all make the same update.
  TrainStep(const Model&, const Params&, const TrainConfig&, std::shared_ptr<Communicator> = Communicator::self());
  TrainStep(const TrainStep&) = delete;  // the compiled function refers to it
  TrainStep& operator=(const TrainStep&) = delete;

  /// What a step was like before its update.
  struct Outcome {
    double loss, grad_norm;
    bool finite() const;
  };
  /// Makes a step at this learning rate. If the loss or the norm is not finite, nothing is updated; `check` sees both
  /// and throws then. After an Error parameters and optimiser are as before. The exception is a compiled step on a GPU
  /// that meets an index out of range: the update has been made when the host learns of it.
  Outcome run(MicroBatches, double lr, const std::function<void(const Outcome&, const MicroBatches&)>& check);
  /// Its loss and gradients alone, op by op.
  StepGradients gradients(const MicroBatches&);
  /// Computes them once more without the other ranks, after an Error of this one, for what ops say about it.
  void search(const MicroBatches&);

  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  /// Counters of the compiled function; null if there is none.
  const CompileStats* compiled() const { return compiled_ ? &compiled_->stats() : nullptr; }

  /// The next step draws from it: the first micro-batch itself, micro-batch i from split(i) at the same offset. A step
  /// advances it by as much as the micro-batch that draws most.
  Rng dropout;

 private:
  std::vector<Tensor> traced(Inputs);
  MicroBatches begin(const MicroBatches&);  // those of this rank; their generators are set
  void end_draws();
  Outcome run_compiled(const MicroBatches&);
  void move_to_device(const Tensor&, Tensor& to) const;
  Model model_;
  Params params_;
  TrainConfig config_;
  std::shared_ptr<Communicator> comm_;
  std::vector<Rng> draws_;  // of each micro-batch
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<Compiled> compiled_;
  std::vector<Tensor> inputs_;  // of the compiled function, on the device
};

}  // namespace tg
