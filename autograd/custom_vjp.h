/// @file
/// custom_vjp(): a function of tensors with a gradient that its author writes, such as a straight-through estimator or
/// a formula that is steadier than the chain of its ops. The forward pass is ordinary ops.
#pragma once
#include <tapegrad/core/op.h>

#include <functional>
#include <vector>

namespace tg {

/// The gradients of the inputs `in` of a function, from its outputs `out` and their gradients `grads`. An entry of
/// `grads` is empty where none arrived; an empty result means no gradient. Each result has the shape of its input.
using VjpFunction = std::function<std::vector<Tensor>(Inputs in, Inputs out, Inputs grads)>;

/// A function that returns what f returns, and whose gradient is vjp. The ops of f are not recorded on the tape; those
/// of vjp are, when gradients are differentiated again. Gradients reach the tensors of `in` only: what f captures is a
/// constant. f takes at least one input. It works eagerly, lazily and in compiled functions, where vjp may not capture
/// a tensor that the traced function makes. Errors: a vjp that returns another number of gradients than f has inputs.
TensorFunction custom_vjp(TensorFunction f, VjpFunction vjp);

}  // namespace tg
