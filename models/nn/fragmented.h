/// @file
/// FragmentedLinear: a linear layer whose input is cut into fragments, each with a matrix of its own. A selector weighs
/// the fragments; what a row does not select passes a narrow path of two thin matrices. It is the layer of document 002
/// (bench/fragmented). Linear can take its form, so a Gpt can be built of it.
#pragma once
#include <tapegrad/models/nn/layers.h>

namespace tg::nn {

/// Which fragments of a row pass their matrices.
enum class Selection {
  soft,  ///< all, each times its weight; the rest of it takes the narrow path. For training.
  hard   ///< the one with the largest weight, of equal ones the first; the others take the narrow path. For evaluation.
};
/// Options of FragmentedLinear.
struct FragmentedOptions {
  int64_t fragments = 8;   ///< F, which divides in
  int64_t compressed = 0;  ///< width of the narrow path; 0 means in / 32
  bool bias = false;       ///< two of them, which start at 0

  /// Throws an Error unless in is a multiple of F, and the narrow path is 1 wide or more.
  void validate(int64_t in) const;
};

/// With p = softmax over f of sum_i x[f, i] selector[f, i], and fragment f of x as x[f],
/// @verbatim
/// soft: y = sum_f p[f] x[f] experts[f] + expander compressor u,   u[f] = (1 - p[f]) x[f]
/// hard: y = x[k] experts[k] + expander compressor u,              k = argmax p, u = x with zeros for x[k]
/// @endverbatim
/// plus both biases. Under hard selection the selector has no gradient. The soft form is computed as one product of
/// (p x) with all experts, one below the other; nothing as large as F rows of the result is made. The hard form reads
/// the selected experts where they lie, each once for all rows that select it.
struct FragmentedLinear : Layer {
  Tensor selector;         ///< (F, in / F), starts at N(0, F / in)
  Tensor experts;          ///< (F, in / F, out), starts at N(0, F / in)
  Tensor compressor;       ///< (C, in), starts at U(-1/sqrt(in), 1/sqrt(in))
  Tensor expander;         ///< (out, C), starts at U(-1/sqrt(C), 1/sqrt(C))
  Tensor expert_bias;      ///< (out) or empty
  Tensor compressed_bias;  ///< (out) or empty

  FragmentedLinear() = default;
  /// Asks the Params for the tensors by their names here. An Error of FragmentedOptions::validate().
  FragmentedLinear(const Params&, int64_t in, int64_t out, FragmentedOptions = {});
  /// (..., in) -> (..., out). x and the parameters are cast to `compute`, and the result has that dtype; if `compute`
  /// is unset, nothing is cast. An Error for a score that is NaN or infinite: fragment_weights().
  Tensor forward(const Tensor& x, Selection = Selection::soft, std::optional<DType> compute = {}) const;
};

}  // namespace tg::nn
