/// @file
/// accumulate(): the loss and the gradients of one large batch, computed in micro-batches one after the other, so that
/// only one of them is in memory at a time. The update is in models/optim. Trainer uses it, and training loops of one's
/// own.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/data/batch.h>

#include <functional>
#include <source_location>
#include <span>
#include <vector>

namespace tg {

/// Micro-batches of a step, and how much each counts. Targets are counted when it is made; accumulate() reads nothing
/// on the host, so it can be compiled, with all of these as inputs.
struct MicroBatches {
  std::vector<Batch> batches;  ///< those with kept targets
  /// Kept targets of each over those of all, (n) f64; empty if there is one batch.
  Tensor weights;
  int64_t targets = 0;  ///< number of kept targets
  MicroBatches() = default;
  /// Leaves out what has no kept targets. An Error if no target is kept at all.
  explicit MicroBatches(std::span<const Batch>);
  /// What rank `rank` of `size` computes of them: an equal number for each, in order. Weights and `targets` are still
  /// those of all. An Error if their number is no multiple of `size`.
  MicroBatches shard(int rank, int size) const;
};

/// The result of accumulate(), of a shard() what it adds to the sums over all ranks.
struct Accumulated {
  Tensor loss;          ///< mean over all kept targets, 0-d f64, without a history
  GradMap grads;        ///< gradients of that mean
  int64_t targets = 0;  ///< number of kept targets
};
/// `loss` computes the mean over the kept targets of a micro-batch, a scalar; it is called once for each, in order.
/// Each micro-batch weighs as much as it has kept targets, so the result is that of one batch of all of them, up to
/// rounding. A micro-batch without kept targets is skipped. A single micro-batch gives the same bits as
/// backward(loss(batch)). Inputs and targets are moved to `device`. An Error if no target is kept at all; those of
/// backward() name the caller's line. `complete` is BackwardOptions::on_leaf_grad for sums over all micro-batches: it
/// is called in the backward pass of the last one.
/// @{
Accumulated accumulate(const std::function<Tensor(const Batch&)>& loss, const MicroBatches&, Device device = {},
                       const std::source_location& = std::source_location::current(),
                       const std::function<void(uint64_t leaf, Tensor& grad)>& complete = {});
inline Accumulated accumulate(const std::function<Tensor(const Batch&)>& loss, std::span<const Batch> micro_batches,
                              Device device = {}, const std::source_location& where = std::source_location::current()) {
  return accumulate(loss, MicroBatches(micro_batches), device, where);
}
/// @}

}  // namespace tg
