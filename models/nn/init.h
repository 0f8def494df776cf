// Init: how a new parameter is filled. Values come from a generator of the parameter's own (nn/module.h), so they do
// not depend on which other parameters a model has. Used by Params and by the layers of nn/layers.h.
#pragma once
#include <tapegrad/core/rng.h>
#include <tapegrad/core/tensor.h>

namespace tg {

struct Init {
  double mean = 0, std = 0;

  static Init constant(double x) { return {x, 0}; }
  static Init normal(double std, double mean = 0) { return {mean, std}; }  // N(mean, std^2)

  // A new leaf. dtype f64, f32 or bf16. The same values on every device; an Error when std is negative.
  Tensor make(const Shape&, DType, Device, Rng) const;
};

}  // namespace tg
