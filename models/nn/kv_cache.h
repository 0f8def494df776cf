/// @file
/// KvCache: the keys and values of the positions that a transformer has seen, so the next token costs one position. It
/// grows by copying: O(length) per token, small beside the attention that reads all of it. It is for inference under
/// NoGradScope. It cannot slide: positions are absolute, and rotary keys are kept rotated. SelfAttention uses it, and
/// Gpt::forward() fills it.
#pragma once
#include <tapegrad/core/tensor.h>

#include <vector>

namespace tg {

/// The keys and values of all layers, for one model and one batch.
class KvCache {
 public:
  /// Keys and values of one layer.
  struct Pair {
    Tensor k, v;  ///< (B, NHkv, T, HS)
  };

  /// The number of positions that it holds.
  int64_t length() const { return layers_.empty() ? 0 : layers_[0].k.size(2); }
  void clear() { layers_.clear(); }
  /// Adds the keys and values of the next positions to those of `layer`, and returns all of them, (B, NHkv, length,
  /// HS). Layers come in order from 0. An Error if they do not fit what is held: a cache belongs to one model and one
  /// batch.
  Pair append(int64_t layer, const Pair& next);

 private:
  std::vector<Pair> layers_;
};

}  // namespace tg
