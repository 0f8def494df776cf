/// @file
/// Init: how a new parameter is filled. Values come from a generator of the parameter's own (nn/module.h), so they do
/// not depend on which other parameters a model has. Used by Params and by the layers of nn/layers.h.
#pragma once
#include <tapegrad/core/rng.h>
#include <tapegrad/core/tensor.h>

#include <string_view>

namespace tg {

/// How the matrices of a model start.
enum class InitScheme {
  gpt2,   ///< N(0, std^2), less for what is added to the residual stream: Radford et al. 2019
  xavier  ///< truncated normals of deviation sqrt(2 / (in + out)): Glorot and Bengio 2010
};
std::string_view name_of(InitScheme);
InitScheme init_from_name(std::string_view);  ///< an Error lists the names

struct Init {
  enum class Kind { constant, normal, truncated_normal, xavier };
  Kind kind = Kind::constant;
  double mean = 0, std = 0;
  Dims parts = {};  ///< xavier: rows that are matrices of their own, one after the other; empty: it is one matrix

  static Init constant(double x) { return {.mean = x}; }
  static Init normal(double std, double mean = 0) { return {.kind = Kind::normal, .mean = mean, .std = std}; }
  /// N(0, std^2) without what is beyond 3 std; the spread is 0.9866 std, and not corrected.
  static Init truncated_normal(double std) { return {.kind = Kind::truncated_normal, .std = std}; }
  /// Of a matrix (out, in): truncated_normal(sqrt(2 / (in + out))), with the `out` of each part.
  static Init xavier() { return {.kind = Kind::xavier}; }

  /// A new leaf. dtype f64, f32 or bf16. The same values on every device; an Error when std is negative, or when the
  /// shape is not that of the parts.
  Tensor make(const Shape&, DType, Device, Rng) const;
};

}  // namespace tg
