/// @file
/// Init: how a new parameter is filled, from a separate generator (models/nn/params.h) that makes its values
/// independent of other parameters.
#pragma once
#include <tapegrad/core/rng.h>
#include <tapegrad/core/tensor.h>
#include <tapegrad/models/config/suggest.h>

namespace tg {

/// How the matrices of a model are initialised.
enum class InitScheme {
  gpt2,   ///< N(0, std^2), less for residual projections (GPT-2)
  xavier  ///< N(0, 2 / (in + out)), truncated: Glorot and Bengio 2010
};
/// Names of schemes.
template <> inline constexpr EnumNames<2> kEnumNames<InitScheme>{"init", {"gpt2", "xavier"}};

/// How one parameter is initialised.
struct Init {
  enum class Kind { constant, normal, truncated_normal, xavier, uniform };
  Kind kind = Kind::constant;
  double mean = 0, std = 0;
  double bound = 0;  ///< of uniform
  /// xavier: the rows of each stacked matrix; empty means one matrix.
  Dims parts = {};

  /// One value everywhere.
  static Init constant(double x) { return {.mean = x}; }
  /// N(mean, std^2).
  static Init normal(double std, double mean = 0) { return {.kind = Kind::normal, .mean = mean, .std = std}; }
  /// N(0, std^2) truncated at 3 std. The deviation is 0.9866 std; it is not corrected.
  static Init truncated_normal(double std) { return {.kind = Kind::truncated_normal, .std = std}; }
  /// U(-bound, bound).
  static Init uniform(double bound) { return {.kind = Kind::uniform, .bound = bound}; }
  /// A matrix (out, in): truncated_normal(sqrt(2 / (in + out))), with the `out` of each part.
  static Init xavier() { return {.kind = Kind::xavier}; }

  /// A new leaf, f64, f32 or bf16, with the same values on every device. Throws if std or bound is negative, or the
  /// shape does not fit the parts.
  Tensor make(const Shape&, DType, Device, Rng) const;
};

}  // namespace tg
