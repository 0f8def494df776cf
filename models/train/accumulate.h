/// @file
/// accumulate(): the loss and the gradients of one large batch, computed in sequential micro-batches, so that only one
/// of them is in memory. Trainer and custom training loops use it.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/data/batch.h>

#include <functional>
#include <source_location>
#include <span>
#include <vector>

namespace tg {

/// Micro-batches of a step and their weights. The constructor counts targets on the host; accumulate() reads nothing
/// there, so it can be compiled with all of these as inputs.
struct MicroBatches {
  std::vector<Batch> batches;  ///< those with kept targets
  /// Fraction of all kept targets in each batch, (n) f64; empty if there is one batch.
  Tensor weights;
  int64_t targets = 0;  ///< number of kept targets
  MicroBatches() = default;
  /// Leaves out batches without kept targets. An Error if no target is kept at all.
  explicit MicroBatches(std::span<const Batch>);
  /// The share of rank `rank` of `size`: an equal number per rank, in order. Weights and `targets` remain those of all.
  /// An Error if `size` does not divide the number of batches.
  MicroBatches shard(int rank, int size) const;
};

/// The result of accumulate(). For a shard(): this rank's contribution to the sums over ranks.
struct Accumulated {
  Tensor loss;          ///< mean over all kept targets, 0-d f64, without a history
  GradMap grads;        ///< gradients of that mean
  int64_t targets = 0;  ///< number of kept targets
};
/// `loss` computes the scalar mean over the kept targets of a micro-batch; it is called once for each, in order.
/// Batches are weighted by kept targets, so the result is that of one large batch, up to rounding; batches without kept
/// targets are skipped. A single micro-batch gives the same bits as backward(loss(batch)). Inputs and targets are moved
/// to `device`. `complete` is BackwardOptions::on_leaf_grad for the sums over all micro-batches, called in the last
/// backward pass. Errors: no target is kept at all; those of backward(), naming the caller's line.
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
