/// @file
/// Activation checkpointing (Chen et al., 2016): a part of a model keeps its inputs instead of its activations, and
/// runs again in backward, which costs another forward pass. The bits are the same, except that gradients of a tensor
/// read by several parts are summed in another order. models/io/checkpoint.h saves training state.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/rng.h>

#include <functional>

namespace tg {

/// A part of a model: a deterministic function of tensors. rng is its generator, or null.
using RecomputeFn = std::function<Tensors(Inputs, Rng* rng)>;

/// fn(in, rng) without kept intermediate values. Backward calls fn again, with a copy of the generator's state, and
/// differentiates that call: fn must own its captures or outlive the tape. Captured tensors, such as parameters, get
/// gradients too, and must keep their values until backward. Backward throws an Error if one of these got a new value,
/// or the number, shapes or dtypes of outputs differ. Under NoGradScope it just calls fn.
Tensors recompute(RecomputeFn fn, Inputs in, Rng* rng = nullptr);
/// recompute() of a function of one tensor.
template <OneTensorFunction F> Tensor recompute(F f, const Tensor& x) {
  return recompute([f = std::move(f)](Inputs in, Rng*) mutable { return Tensors{f(in[0])}; }, {&x, 1})[0];
}

}  // namespace tg
