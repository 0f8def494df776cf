/// @file
/// accumulate: the loss and the gradients of one large batch, computed in micro-batches one after the other, so that
/// only one of them is in memory at a time. Not the update (models/optim). Users: Trainer, loops of one's own.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/models/data/dataset.h>

#include <functional>
#include <optional>
#include <span>

namespace tg {

struct Accumulated {
  double loss = 0;     ///< mean cross-entropy over all kept targets, in nats
  GradMap grads;       ///< of that mean
  int64_t tokens = 0;  ///< kept targets
};
/// `logits` makes logits (B, T, V) out of tokens (B, T); it is called once for each micro-batch, in order. Targets
/// equal to ignore_index are left out. Each micro-batch weighs as much as it has kept targets, so that the result is
/// that of one batch of all windows up to rounding; one without any is skipped. A single one gives exactly the bits of
/// backward(cross_entropy(...)). Tokens and targets are moved to `device`. An Error when no target is kept at all.
Accumulated accumulate(const std::function<Tensor(const Tensor& tokens)>& logits, std::span<const Batch> micro_batches,
                       Device = {}, std::optional<int64_t> ignore_index = std::nullopt);

}  // namespace tg
