/// @file
/// Batch: inputs and targets of a forward pass. BatchSource: the batches of a Trainer.
#pragma once
#include <tapegrad/core/rng.h>
#include <tapegrad/core/tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace tg {

/// Inputs and targets. Language models: (B, T) i32 on the CPU; targets[b, t] follows inputs[b, t].
struct Batch {
  Tensor inputs, targets;
  /// Loss ignores this target (padding).
  static constexpr int64_t kIgnoreIndex = -100;

  int64_t num_targets() const;
  /// Batch on a device.
  Batch to(Device d) const { return {inputs.to(d), targets.to(d)}; }
};

/// Batches of any kind, for training and validation.
struct BatchSource {
  /// Makes a batch. The generator is its only source of randomness.
  std::function<Batch(Rng&)> next;
  /// The i-th validation batch from 0, none after the last. Empty: no validation.
  std::function<std::optional<Batch>(int64_t i)> validation = {};
};

namespace detail {
// int(fraction * size), the size of the training part. An Error unless 0 < fraction <= 1.
int64_t training_part(double fraction, int64_t size, const std::string& name);
// An epoch's generator and the next of its n places, which the offset counts.
std::pair<Rng, uint64_t> next_in_epochs(Rng& rng, uint64_t n);
}  // namespace detail

}  // namespace tg
