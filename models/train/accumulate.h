/// @file
/// accumulate(): the loss and gradients of a large batch, from sequential micro-batches with only one in memory.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/data/batch.h>

#include <concepts>
#include <functional>
#include <source_location>
#include <span>
#include <vector>

namespace tg {

/// A step's micro-batches and weights. Constructors count targets on the host, so accumulate() can be compiled.
struct MicroBatches {
  std::vector<Batch> batches;
  /// Each batch's fraction of all kept targets, (n) f64; empty for one batch.
  Tensor weights;
  int64_t targets = 0;  ///< number of kept targets
  MicroBatches() = default;
  /// Leaves out batches without kept targets. Throws if no target is kept at all.
  MicroBatches(std::span<const Batch>);
  template <std::convertible_to<std::span<const Batch>> Batches>
  MicroBatches(const Batches& all) : MicroBatches(std::span<const Batch>(all)) {}
  /// The share of rank `rank` of `size`: an equal number per rank, in order. Weights and `targets` remain those of all.
  /// Throws unless `size` divides the number.
  MicroBatches shard(int rank, int size) const;
};

/// Result of accumulate(). For a shard(): this rank's contribution to the sums over ranks.
struct Accumulated {
  Tensor loss;    ///< mean over all kept targets, 0-d f64, without a history
  GradMap grads;  ///< gradients of that mean
};
/// `loss` computes the scalar mean over a micro-batch's kept targets; it is called once for each, in order. Weights are
/// kept targets, so the result is that of one large batch, up to rounding; batches without kept targets are skipped.
/// One micro-batch gives the bits of backward(loss(batch)). Inputs and targets are moved to `device`. `complete` is
/// BackwardOptions::on_leaf_grad for the sums over all micro-batches, called in the last backward pass. Errors: no kept
/// target; those of backward(), naming the caller's line.
Accumulated accumulate(const std::function<Tensor(const Batch&)>& loss, const MicroBatches&, Device device = {},
                       const std::source_location& = std::source_location::current(),
                       const std::function<void(uint64_t leaf, Tensor& grad)>& complete = {});

}  // namespace tg
