/// @file
/// LoRA (Hu et al. 2021, arXiv:2106.09685): a frozen linear layer learns through a product of two thin matrices, which
/// is added to its result or, after training, to its weight. These are the layers: models/model/lora.h puts them into a
/// Gpt, models/io/adapter.h writes them to files.
#pragma once
#include <tapegrad/models/nn/layers.h>

namespace tg::nn {

/// Options of one adapter. The delta is scaled by alpha / rank.
struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;  ///< probability of dropping an element of x A in training

  /// Throws an Error unless rank is in [1, min(in, out)], alpha is finite and above 0, and dropout is in [0, 1).
  void validate(int64_t in, int64_t out) const;
};

/// What an adapter learns, without the layer that it is added to: s dropout(x A) B, with s = alpha / rank. At first B
/// is 0, and so are the result and the gradient of A.
struct LoraDelta : Layer {
  Tensor a;  ///< (in, r), named "lora_a"; starts at N(0, 1 / r)
  Tensor b;  ///< (r, out), named "lora_b"; starts at 0
  double scale = 0;
  double dropout = 0;

  /// Makes r (in + out) parameters in the dtype of the Params. Errors are those of LoraOptions::validate().
  LoraDelta(const Params&, int64_t in, int64_t out, const LoraOptions& = {});
  /// s dropout(x A) B: x (..., in) -> (..., out), in x's dtype, to which A and B are cast. Dropout draws from rng; null
  /// means no dropout. If base (..., out) is given, it is added in the same pass. Runs at once, or lazily under a
  /// LazyScope.
  Tensor forward(const Tensor& x, Rng* rng = nullptr, const Tensor& base = {}) const;
  /// Calls forward() under a LazyScope: nothing runs until the result is read or passed to evaluate(). It serves a
  /// caller that collects several results and runs them together. The result is that of forward(), bit for bit.
  Tensor forward_lazy(const Tensor& x, Rng* rng = nullptr, const Tensor& base = {}) const;
  Tensor weight() const;  ///< s (A B)^T, (out, in): what the adapter adds to the weight of a Linear
};

/// What a Linear adds to its result. Copies of the Linear share it.
struct LoraAdapter {
  LoraDelta delta;
  /// The weight without the delta, while the delta is merged into it; else empty.
  Tensor unmerged = {};
};

/// A Linear with a delta: x W^T + bias + delta(x). W and bias are frozen: they get no gradient, and x is not kept for
/// one. Copies share the delta, and whether it is merged.
class LoraLinear {
 public:
  /// Freezes the tensors of `base`, also for others that hold them. The delta's parameters come from Params, under its
  /// path. An Error if base has a delta already; other Errors are those of LoraOptions::validate().
  LoraLinear(Linear base, const Params&, const LoraOptions& = {});
  /// x W^T + bias + delta(x): (..., in) -> (..., out), as nn::Linear::forward().
  Tensor forward(const Tensor& x, std::optional<DType> compute = {}, Rng* rng = nullptr) const {
    return linear_.forward(x, compute, rng);
  }
  const Linear& linear() const { return linear_; }
  const LoraDelta& delta() const { return linear_.adapter->delta; }
  bool merged() const { return bool(linear_.adapter->unmerged); }

  /// Adds the delta to the weight: W becomes W + s (A B)^T, summed in A's dtype and rounded once to W's. forward() then
  /// is that of the plain layer, for everybody who holds W. The former W stays in memory. An Error if it is merged
  /// already.
  void merge();
  /// Restores W, bit for bit. An Error if it is not merged.
  void unmerge();

 private:
  Linear linear_;
};

}  // namespace tg::nn
