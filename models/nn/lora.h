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
  double dropout = 0;  ///< dropout of x A in training
  /// scale() is alpha / sqrt(rank) (Kalajdzievski, 2023, arXiv:2312.03732).
  bool rslora = false;

  /// Factor of the delta: alpha / rank, or that of rslora.
  double scale() const;

  /// Throws unless rank is in [1, min(in, out)], alpha is finite and above 0, and dropout is in [0, 1).
  void validate(int64_t in, int64_t out) const;
};

/// Low-rank delta alone: s dropout(x A) B, with s = LoraOptions::scale(). B starts at 0, and so do the result and
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
  Tensor weight() const;  ///< s (A B)^T, (out, in): merge()'s addend
};

/// Rows [begin, begin + count) of a weight (out, in) = the result's columns. count 0: all.
struct LoraRows {
  int64_t begin = 0, count = 0;
};

/// A Linear's deltas on disjoint weight rows, shared by copies.
struct LoraAdapter {
  /// One delta.
  struct Part {
    int64_t row = 0;  ///< first row
    LoraDelta delta;  ///< delta of these rows
  };
  std::vector<Part> parts;  ///< sorted by row
  /// Weight without deltas while merged; else empty.
  Tensor unmerged = {};
  std::shared_ptr<LoraAdapter> reference = {};  ///< frozen, for passes without `parts` (Lora::keep_reference())
  detail::OneUser user = {};                    ///< held by merge() and unmerge()

  /// base + the deltas: x (..., in), base (..., out) -> (..., out). Several deltas run as one: A concatenated, B block
  /// diagonal.
  Tensor forward(const Tensor& x, Rng* rng, const Tensor& base) const;
  /// Weight plus all deltas, (out, in), summed in A's dtype and rounded once to the weight's dtype.
  Tensor merged(const Tensor& weight) const;
};

/// A Linear with a delta on some of its rows: x W^T + bias + delta(x). W and bias are frozen: no gradient, and x is not
/// kept for one. Copies share the delta and its merged state.
class LoraLinear {
 public:
  /// Freezes `base` for all holders. The delta's parameters come from Params. Errors: rows outside the weight or
  /// another delta's, deltas of different dropout, merged `base`, LoraOptions::validate().
  LoraLinear(Linear base, const Params&, const LoraOptions& = {}, LoraRows = {});
  /// x W^T + bias + all deltas of the layer: (..., in) -> (..., out). See nn::Linear::forward().
  Tensor forward(const Tensor& x, std::optional<DType> compute = {}, Rng* rng = nullptr) const {
    return linear_.forward(x, compute, rng);
  }
  const Linear& linear() const { return linear_; }
  int64_t row() const { return row_; }               ///< first row
  const LoraDelta& delta() const { return delta_; }  ///< delta of these rows
  bool merged() const { return bool(linear_.adapter->unmerged); }

  /// W becomes LoraAdapter::merged() for all holders; forward() is that of the plain layer. The former W stays in
  /// memory. An Error if merged.
  void merge();
  /// Restores W, bit for bit. Throws if it is not merged.
  void unmerge();

 private:
  Linear linear_;
  int64_t row_;
  LoraDelta delta_;
};

}  // namespace tg::nn
