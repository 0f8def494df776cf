/// @file
/// Batch: what a model sees in one pass, and what it should answer; BatchSource: where a Trainer takes batches from.
/// Windows of tokens (dataset.h) are one kind of them.
#pragma once
#include <tapegrad/core/rng.h>
#include <tapegrad/core/tensor.h>

#include <functional>
#include <optional>

namespace tg {

/// Inputs of a model and their targets. Of language models both are (B, T) i32 on the CPU: targets[b, t] is the token
/// that follows inputs[b, t].
struct Batch {
  Tensor inputs, targets;
  /// A target of this value is left out of the loss, such as padding.
  static constexpr int64_t kIgnoreIndex = -100;

  /// The number of targets that are kept.
  int64_t num_targets() const;
  /// The batch on a device.
  Batch to(Device d) const { return {inputs.to(d), targets.to(d)}; }
};

/// Batches of any kind, to train and to validate on.
struct BatchSource {
  /// Makes a batch. It takes its randomness from the generator alone, so that equal generators give equal batches and a
  /// run can be resumed.
  std::function<Batch(Rng&)> next;
  /// The i-th batch of the validation, counted from 0, or nothing after the last. Empty means no validation.
  std::function<std::optional<Batch>(int64_t i)> validation = {};
};

}  // namespace tg
