/// @file
/// LoRA (Hu et al. 2021, arXiv:2106.09685): a frozen linear layer learns by a product of two thin matrices, which is
/// added to its result or, after training, to its weight. The layers only: models/gpt/lora.h puts them into a Gpt,
/// models/io/adapter.h writes them to files.
#pragma once
#include <tapegrad/models/nn/layers.h>

namespace tg::nn {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;  ///< of x A, in training

  /// An Error unless rank is in [1, min(in, out)], alpha is above 0 and finite, and dropout is in [0, 1).
  void validate(int64_t in, int64_t out) const;
};

/// s (dropout(x A) B), with s = alpha / rank: what is learned, without the layer that it is added to. At first B is 0,
/// and so are the result and the gradient of A.
struct LoraDelta : Layer {
  Tensor a;  ///< (in, r), named "lora_a"; starts at N(0, 1 / r)
  Tensor b;  ///< (r, out), named "lora_b"; starts at 0
  double scale = 0;
  double dropout = 0;

  /// r (in + out) parameters, of the dtype of the Params. An Error of LoraOptions::validate().
  LoraDelta(const Params&, int64_t in, int64_t out, const LoraOptions& = {});
  /// (..., in) -> (..., out), of the dtype of x, to which A and B are cast if they have another. Dropout draws from
  /// rng; null: there is none. Runs at once, or later under a LazyScope, as all layers do. base (..., out), if there is
  /// one, is added in the same pass.
  Tensor forward(const Tensor& x, Rng* rng = nullptr, const Tensor& base = {}) const;
  /// The same result bit for bit, but nothing runs before it is read or given to evaluate().
  Tensor forward_lazy(const Tensor& x, Rng* rng = nullptr, const Tensor& base = {}) const;
  Tensor weight() const;  ///< s (A B)^T, (out, in): what it adds to the weight of a Linear
};

/// What a Linear adds to its result, shared by its copies.
struct LoraAdapter {
  LoraDelta delta;
  Tensor unmerged =
      {};  ///< the weight without the delta, while that is part of the weight and is not added; else empty
};

/// A Linear with a delta: x W^T + bias + delta(x). W and bias are frozen: no gradient is computed for them, and x is
/// not kept for them. Copies share the delta, and whether it is merged.
class LoraLinear {
 public:
  /// Freezes the tensors of `base`, for whoever else has them too. The delta's parameters come from Params, under its
  /// path. An Error when base has a delta already, or of LoraOptions::validate().
  LoraLinear(Linear base, const Params&, const LoraOptions& = {});
  Tensor forward(const Tensor& x, DType compute = DType::f32, Rng* rng = nullptr) const {
    return linear_.forward(x, compute, rng);
  }
  const Linear& linear() const { return linear_; }
  const LoraDelta& delta() const { return linear_.adapter->delta; }
  bool merged() const { return bool(linear_.adapter->unmerged); }

  /// W becomes W + s (A B)^T, which is summed in the dtype of A and rounded once to that of W, and forward() is the
  /// plain layer, for everybody who has W. W as it was stays in memory. An Error when it is merged.
  void merge();
  /// W is what it was, bit for bit. An Error when it is not merged.
  void unmerge();

 private:
  Linear linear_;
};

}  // namespace tg::nn
