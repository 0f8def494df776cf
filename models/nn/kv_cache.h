/// @file
/// KvCache: the keys and values of the positions that a transformer has seen, so the next token costs one position. It
/// is for inference under NoGradScope. It cannot slide: positions are absolute, and rotary keys are kept rotated.
/// SelfAttention uses it, and Gpt::forward() fills it.
///
/// A KvCache() grows by copying: O(length) per token, small beside the attention that reads all of it. A
/// KvCache::with_capacity() has its memory from the start and is written in place, at positions that are tensors: its
/// sequences may have unequal lengths, and a function that fills it can be compiled.
#pragma once
#include <tapegrad/core/tensor.h>

#include <vector>

namespace tg {

/// The sizes of a KvCache of fixed capacity.
struct KvCacheShape {
  int64_t layers = 1;
  int64_t batch = 1;     ///< B, the number of sequences
  int64_t kv_heads = 1;  ///< NHkv
  int64_t capacity = 1;  ///< the most positions of a sequence
  int64_t head_size = 1;
  DType dtype = DType::f32;  ///< of keys and values: that in which the model computes
  Device device = {};
};

/// The keys and values of all layers, for one model and one batch. Copies of a fixed cache share its memory.
class KvCache {
 public:
  /// Keys and values of one layer.
  struct Pair {
    Tensor k, v;  ///< (B, NHkv, T, HS)
  };

  /// A cache that grows.
  KvCache() = default;
  /// An empty cache of fixed capacity: zeros. An Error unless all sizes are 1 or more.
  static KvCache with_capacity(const KvCacheShape&);

  bool has_capacity() const { return bool(lengths_); }
  /// The most positions of a sequence; 0 if it grows.
  int64_t capacity() const { return has_capacity() ? layers_[0].k.size(2) : 0; }
  /// The number of positions that it holds; of a fixed cache that of the longest sequence, which the host reads.
  int64_t length() const;
  /// The number of positions of each sequence of a fixed cache, (B) i64 on its device; empty if it grows. It is the
  /// position of what comes next.
  const Tensor& lengths() const { return lengths_; }
  /// Gives the sequences of a fixed cache other lengths, (B) i32 or i64: shorter ones forget what is beyond. An Error
  /// if it grows. The values are not checked; attention names one that is out of range.
  void set_lengths(const Tensor&);
  /// Forgets all positions.
  void clear();

  /// Adds the keys and values of the next positions to those of `layer`, and returns all of them: (B, NHkv, length,
  /// HS), or of a fixed cache (B, NHkv, capacity, HS), of which attention() sees those below lengths() by
  /// AttentionOptions::starts. Layers come in order from 0. An Error if they do not fit what is held: a cache belongs
  /// to one model and one batch. If a sequence is full, slice_update() says so when it runs, before it writes.
  Pair append(int64_t layer, const Pair& next);
  /// Counts the positions that all layers of a fixed cache have got: so many for each sequence, (B) i32 or i64, or for
  /// all. Until then they do not count as held. A model calls it once, at the end of its forward(); nothing happens to
  /// a cache that grows.
  /// @{
  void advance(const Tensor& positions);
  void advance(int64_t positions);
  /// @}

 private:
  std::vector<Pair> layers_;
  Tensor lengths_;
};

}  // namespace tg
