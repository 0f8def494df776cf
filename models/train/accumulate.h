/// @file
/// accumulate(): the loss and the gradients of one large batch, computed in micro-batches one after the other, so that
/// only one of them is in memory at a time. The update is in models/optim. Trainer uses it, and training loops of one's
/// own.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/data/dataset.h>

#include <functional>
#include <optional>
#include <span>

namespace tg {

/// The result of accumulate().
struct Accumulated {
  double loss = 0;     ///< mean cross-entropy over all kept targets, in nats
  GradMap grads;       ///< gradients of that mean
  int64_t tokens = 0;  ///< number of kept targets
};
/// `logits` computes logits (B, T, V) from tokens (B, T); it is called once for each micro-batch, in order. Targets
/// equal to ignore_index are left out. Each micro-batch weighs as much as it has kept targets, so the result is that of
/// one batch of all windows, up to rounding. A micro-batch without kept targets is skipped. A single micro-batch gives
/// the same bits as backward(cross_entropy(...)). Tokens and targets are moved to `device`. An Error if no target is
/// kept at all.
Accumulated accumulate(const std::function<Tensor(const Tensor& tokens)>& logits, std::span<const Batch> micro_batches,
                       Device = {}, std::optional<int64_t> ignore_index = std::nullopt);

}  // namespace tg
