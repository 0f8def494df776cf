/// @file
/// A function of tensors with a user-defined gradient, such as a straight-through estimator or a numerically stable
/// formula. The forward pass is ordinary ops.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/plan/compile.h>

#include <functional>
#include <vector>

namespace tg {

/// Gradients of a function's inputs `in`, in their shapes, given its outputs `out` and their gradients `grads`. Empty
/// entries of `grads` and of the result mean no gradient.
using VjpFunction = std::function<std::vector<Tensor>(Inputs in, Inputs out, Inputs grads)>;

/// A function with the results of f and the gradient vjp. The ops of vjp alone are on the tape, for second derivatives.
/// Gradients reach `in` alone: captures of f are constants. f takes at least one input. It may be eager, lazy or
/// compiled; if compiled, vjp must not capture a tensor that the traced function makes. An Error unless vjp returns one
/// gradient per input.
TensorFunction custom_vjp(TensorFunction f, VjpFunction vjp);
/// custom_vjp() of a function of one tensor: vjp(x, y, dy), y = f(x), is the gradient of x.
template <OneTensorFunction F, class Vjp> auto custom_vjp(F f, Vjp vjp) {
  VjpFunction all = [=](Inputs in, Inputs out, Inputs grads) { return std::vector{vjp(in[0], out[0], grads[0])}; };
  return [g = custom_vjp(detail::of_inputs(std::move(f)), std::move(all))](const Tensor& x) { return g({&x, 1})[0]; };
}

}  // namespace tg
