/// @file
/// KvCache: the keys and values of the positions that a transformer has seen, so the next token costs one position. It
/// is for inference under NoGradScope. It cannot slide: positions are absolute, and keys are stored rotated (rope).
/// SelfAttention uses it, and Gpt::forward() fills it.
///
/// A KvCache() grows by copying: O(length) per token, small next to the attention that reads all of it. A
/// KvCache::with_capacity() allocates its memory at the start and is written in place, at positions that are tensors:
/// its sequences may differ in length, and a function that fills it can be compiled.
#pragma once
#include <tapegrad/core/tensor.h>

#include <vector>

namespace tg {

/// The sizes of a KvCache of fixed capacity.
struct KvCacheShape {
  int64_t layers = 1;
  int64_t batch = 1;     ///< B, the number of sequences
  int64_t kv_heads = 1;  ///< NHkv
  int64_t capacity = 1;  ///< maximum positions per sequence
  int64_t head_size = 1;
  DType dtype = DType::f32;  ///< of keys and values: the model's compute dtype
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
  /// An empty cache of fixed capacity, filled with zeros. An Error unless all sizes are 1 or more.
  static KvCache with_capacity(const KvCacheShape&);

  bool has_capacity() const { return bool(lengths_); }
  /// The maximum positions per sequence; 0 if it grows.
  int64_t capacity() const { return has_capacity() ? layers_[0].k.size(2) : 0; }
  /// The number of positions held. For a fixed cache it is that of the longest sequence, and the host waits for it.
  int64_t length() const;
  /// The number of positions of each sequence of a fixed cache, (B) i64 on its device; empty if it grows. It is the
  /// next position to write.
  const Tensor& lengths() const { return lengths_; }
  /// Sets the lengths of the sequences of a fixed cache, (B) i32 or i64; a shorter length drops the positions beyond
  /// it. An Error if the cache grows. The values are not checked here; attention() reports one out of range.
  void set_lengths(const Tensor&);
  /// Forgets all positions.
  void clear();

  /// Appends the keys and values of the next positions to `layer`, and returns all of them: (B, NHkv, length, HS), or
  /// (B, NHkv, capacity, HS) for a fixed cache, where AttentionOptions::starts limits attention() to those below
  /// lengths(). Layers come in order from 0. An Error if the shapes do not fit: a cache belongs to one model and one
  /// batch. If a sequence is full, slice_update() throws when it runs, before it writes.
  Pair append(int64_t layer, const Pair& next);
  /// Adds to lengths() the positions that all layers of a fixed cache have appended: one count for each sequence, (B)
  /// i32 or i64, or one for all. A model calls it once, at the end of its forward(). It does nothing to a cache that
  /// grows.
  /// @{
  void advance(const Tensor& positions);
  void advance(int64_t positions);
  /// @}

 private:
  std::vector<Pair> layers_;
  Tensor lengths_;
};

}  // namespace tg
