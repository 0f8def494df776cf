/// @file
/// Activation checkpointing (Chen et al. 2016): a part of a model keeps its inputs instead of its activations, and runs
/// again in backward. This costs one more forward pass of the part. Values and gradients have the same bits, except
/// that gradients of a tensor read by several parts are summed in another order. models/io/checkpoint.h has the files
/// of training state.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/rng.h>

#include <functional>

namespace tg {

/// A part of a model: a deterministic function of tensors. rng is its generator, or null.
using RecomputeFn = std::function<Tensors(Inputs, Rng* rng)>;

/// Returns fn(in, rng), without keeping its intermediate values. Backward calls fn again, with a copy of the
/// generator's state, and differentiates that call, so fn must own its captures or outlive the tape. Parameters and
/// other captured tensors get their gradients too. Backward throws an Error if the number, shapes or dtypes of outputs
/// then differ. Under NoGradScope it just calls fn.
Tensors recompute(RecomputeFn fn, Inputs in, Rng* rng = nullptr);

}  // namespace tg
