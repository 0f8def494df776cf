/// @file
/// KvCache: keys and values of the positions that a transformer has seen, so that the next token costs one position.
/// It grows by copying (O(length) per token, small beside the attention that reads all of it). For inference under
/// NoGradScope; it cannot slide: positions are absolute, and keys of rotary ones are kept turned. Used by
/// SelfAttention, filled by Gpt::forward.
#pragma once
#include <tapegrad/core/tensor.h>

#include <vector>

namespace tg {

class KvCache {
 public:
  struct Pair {
    Tensor k, v;  ///< (B, NHkv, T, HS)
  };

  int64_t length() const { return layers_.empty() ? 0 : layers_[0].k.size(2); }  ///< positions held
  void clear() { layers_.clear(); }
  /// Adds the keys and values of the next positions to those of `layer`; returns all of them, (B, NHkv, length, HS).
  /// Layers come in order from 0. An Error when they do not fit what is held: a cache belongs to one model and one
  /// batch.
  Pair append(int64_t layer, const Pair& next);

 private:
  std::vector<Pair> layers_;
};

}  // namespace tg
