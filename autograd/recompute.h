/// @file
/// Activation checkpointing (Chen et al. 2016): a part of a model keeps its inputs instead of its activations, and runs
/// again during backward. Same values and gradients bit for bit, for one more forward pass of the part; only where
/// several parts read one tensor do its gradients add up in another order. Not files of training state:
/// models/io/checkpoint.h.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/rng.h>

#include <functional>

namespace tg {

/// The part: a function of tensors that does the same each time. rng is the generator that it draws from, or null.
using RecomputeFn = std::function<Tensors(Inputs, Rng* rng)>;

/// fn(in, rng), without a tape inside of it. Backward calls fn again, with a copy of the generator as it was, and goes
/// through what it records then; so fn must own what it captures, or outlive the tape. Parameters and other tensors
/// that fn reads without having them passed get their gradients too. An Error at backward when fn then gives outputs of
/// other number, shape or dtype. Under NoGradScope it is fn itself.
Tensors recompute(RecomputeFn fn, Inputs in, Rng* rng = nullptr);

}  // namespace tg
