/// @file
/// Activation checkpointing (Chen et al. 2016): a part of a model keeps its inputs instead of its activations, and runs
/// again during backward. Values and gradients are the same bits, for one more forward pass of the part; only if
/// several parts read one tensor do its gradients add up in another order. Files of training state are in
/// models/io/checkpoint.h. Models use it for their blocks.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/rng.h>

#include <functional>

namespace tg {

/// A part of a model: a function of tensors that does the same each time. rng is the generator that it draws from, or
/// null.
using RecomputeFn = std::function<Tensors(Inputs, Rng* rng)>;

/// Returns fn(in, rng), without keeping what fn computes. Backward calls fn again, with a copy of the generator's
/// state, and differentiates that call. So fn must own what it captures, or outlive the tape. Parameters and other
/// tensors that fn reads without having them passed get their gradients, too. Backward throws an Error if fn then
/// returns outputs of other number, shape or dtype. Under NoGradScope it just calls fn.
Tensors recompute(RecomputeFn fn, Inputs in, Rng* rng = nullptr);

}  // namespace tg
