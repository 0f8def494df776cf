/// @file
/// FragmentedLinear: a linear layer that splits its input into fragments with separate matrices. A selector weighs the
/// fragments; the unselected rest passes a low-rank path. It is document 002's layer (bench/fragmented).
/// LinearOptions::fragments puts it into a Linear.
#pragma once
#include <tapegrad/models/nn/layers.h>

namespace tg::nn {

/// Fragments that are multiplied by their matrices.
enum class Selection {
  /// All, weighted, for training.
  soft,
  /// The one of largest weight, for evaluation; the lowest index on ties.
  hard
};
/// Options of FragmentedLinear.
struct FragmentedOptions {
  int64_t fragments = 8;   ///< F; must divide `in`
  int64_t compressed = 0;  ///< C, low-rank path's rank; 0: in / 32
  bool bias = false;       ///< two biases, initially 0

  /// An Error unless F divides `in` and C >= 1.
  void validate(int64_t in) const;
};

/// With p = softmax over f of sum_i x[f, i] selector[f, i], and fragment f of x as x[f],
/// @verbatim
/// soft: y = sum_f p[f] x[f] experts[f] + expander compressor u,   u[f] = (1 - p[f]) x[f]
/// hard: y = x[k] experts[k] + expander compressor u,              k = argmax p, u = x with zeros for x[k]
/// @endverbatim
/// plus both biases. Hard selection gives the selector no gradient. The soft form is one GEMM of (p x) with all experts
/// stacked, without an intermediate of F rows per input row. The hard form reads each selected expert in place, once
/// for all its rows.
struct FragmentedLinear : Layer {
  Tensor selector;         ///< (F, in / F), starts at N(0, F / in)
  Tensor experts;          ///< (F, in / F, out), starts at N(0, F / in)
  Tensor compressor;       ///< (C, in), starts at U(-1/sqrt(in), 1/sqrt(in))
  Tensor expander;         ///< (out, C), starts at U(-1/sqrt(C), 1/sqrt(C))
  Tensor expert_bias;      ///< (out) or empty
  Tensor compressed_bias;  ///< (out) or empty

  FragmentedLinear() = default;
  /// Asks the Params for these tensors. Errors: FragmentedOptions::validate().
  FragmentedLinear(const Params&, int64_t in, int64_t out, FragmentedOptions = {});
  /// (..., in) -> (..., out). x and parameters are cast to `compute`, the result's dtype, if set. Errors:
  /// fragment_weights() for non-finite scores.
  Tensor forward(const Tensor& x, Selection = Selection::soft, std::optional<DType> compute = {}) const;
};

}  // namespace tg::nn
