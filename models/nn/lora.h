/// @file
/// LoRA (Hu et al., 2021, arXiv:2106.09685): a frozen linear layer learns through a low-rank product, added to its
/// result or, after training, its weight. models/model/lora.h adds it to a model, models/io/peft.h writes files.
#pragma once
#include <tapegrad/core/engine/one_user.h>
#include <tapegrad/models/nn/layers.h>

#include <vector>

namespace tg::nn {

/// Options of one adapter.
struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;  ///< probability of dropping an element of x A in training
  /// scale() is alpha / sqrt(rank) (Kalajdzievski, 2023, arXiv:2312.03732).
  bool rslora = false;

  /// The factor of the delta: alpha / rank, or that of rslora.
  double scale() const;

  /// Throws unless rank is in [1, min(in, out)], alpha is finite and above 0, and dropout is in [0, 1).
  void validate(int64_t in, int64_t out) const;
};

/// The low-rank delta alone: s dropout(x A) B, with s = LoraOptions::scale(). B starts at 0, and so do the result and
/// the gradient of A.
struct LoraDelta : Layer {
  Tensor a;  ///< (in, r), named "lora_a"; starts at N(0, 1 / r)
  Tensor b;  ///< (r, out), named "lora_b"; starts at 0
  double scale = 0;
  double dropout = 0;

  /// Makes r (in + out) parameters in the Params' dtype. Errors: LoraOptions::validate().
  LoraDelta(const Params&, int64_t in, int64_t out, const LoraOptions& = {});
  /// s dropout(x A) B: x (..., in) -> (..., out), in x's dtype. Dropout draws from rng; null means none. The same pass
  /// adds base (..., out), if given. Eager, or lazy under a LazyScope.
  Tensor forward(const Tensor& x, Rng* rng = nullptr, const Tensor& base = {}) const;
  Tensor weight() const;  ///< s (A B)^T, (out, in): what merge() adds to the weight
};

/// Rows [begin, begin + count) of a weight (out, in), which are columns of the result. A count of 0: all rows.
struct LoraRows {
  int64_t begin = 0, count = 0;
};

/// The deltas of a Linear, on disjoint rows of its weight. Copies of the Linear share them.
struct LoraAdapter {
  /// One delta.
  struct Part {
    int64_t row = 0;  ///< the first row of the weight that it changes
    LoraDelta delta;  ///< of these rows
  };
  std::vector<Part> parts;  ///< by row
  /// The weight without deltas while merged; else empty.
  Tensor unmerged = {};
  std::shared_ptr<LoraAdapter> reference = {};  ///< frozen, for passes without `parts` (Lora::keep_reference())
  detail::OneUser user = {};                    ///< that merges it

  /// base + the deltas: x (..., in), base (..., out) -> (..., out). Several deltas run as one: their A side by side, B
  /// block by block.
  Tensor forward(const Tensor& x, Rng* rng, const Tensor& base) const;
  /// The weight plus all deltas, (out, in), summed in A's dtype and rounded once to the weight's.
  Tensor merged(const Tensor& weight) const;
};

/// A Linear with a delta on some of its rows: x W^T + bias + delta(x). W and bias are frozen: no gradient, and x is not
/// kept for one. Copies share the delta and its merged state.
class LoraLinear {
 public:
  /// Freezes the tensors of `base`, for all holders. The delta's parameters come from Params, under its path. Errors:
  /// the rows are outside the weight or overlap those of another delta, another delta has another dropout, `base` is
  /// merged, or LoraOptions::validate().
  LoraLinear(Linear base, const Params&, const LoraOptions& = {}, LoraRows = {});
  /// x W^T + bias + all deltas of the layer: (..., in) -> (..., out). See nn::Linear::forward().
  Tensor forward(const Tensor& x, std::optional<DType> compute = {}, Rng* rng = nullptr) const {
    return linear_.forward(x, compute, rng);
  }
  const Linear& linear() const { return linear_; }
  int64_t row() const { return row_; }               ///< the first row of the delta
  const LoraDelta& delta() const { return delta_; }  ///< that of its rows
  bool merged() const { return bool(linear_.adapter->unmerged); }

  /// W becomes LoraAdapter::merged(), with all deltas of the layer. forward() is then the plain layer's, for all
  /// holders of W. The former W stays in memory. Throws if already merged.
  void merge();
  /// Restores W, bit for bit. Throws if it is not merged.
  void unmerge();

 private:
  Linear linear_;
  int64_t row_;
  LoraDelta delta_;
};

}  // namespace tg::nn
