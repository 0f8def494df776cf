/// @file
/// KvCache: the keys and values of past positions, so the next token costs one position. For inference under
/// NoGradScope. It cannot slide: positions are absolute, and keys are stored rotated (rope).
///
/// A KvCache() grows by copying: O(length) per token, small next to the attention that reads all of it. A
/// KvCache::with_capacity() is allocated once and written in place, at positions that are tensors: its sequences may
/// differ in length, and it works in compiled functions.
#pragma once
#include <tapegrad/core/engine/one_user.h>
#include <tapegrad/core/tensor.h>

#include <memory>
#include <vector>

namespace tg {

/// The sizes of a KvCache of fixed capacity.
struct KvCacheOptions {
  int64_t layers = 1;
  int64_t batch = 1;     ///< B, the number of sequences
  int64_t kv_heads = 1;  ///< NHkv
  int64_t capacity = 1;  ///< maximum positions per sequence
  int64_t head_size = 1;
  DType dtype = DType::f32;  ///< the model's compute dtype
  Device device = {};
};

/// All layers' keys and values, for one model and batch. Copies of a fixed cache share memory. One thread at a time.
class KvCache {
 public:
  /// Keys and values of one layer.
  struct Pair {
    Tensor k, v;  ///< (B, NHkv, T, HS)
  };

  /// A cache that grows.
  KvCache() = default;
  /// An empty cache of fixed capacity. Throws unless all sizes are 1 or more.
  static KvCache with_capacity(const KvCacheOptions&);

  bool has_capacity() const { return bool(lengths_); }
  /// Maximum positions per sequence; 0 if it grows.
  int64_t capacity() const { return has_capacity() ? layers_[0].k.size(2) : 0; }
  /// Positions held; for a fixed cache the longest sequence's, read by the host.
  int64_t length() const;
  /// Length and next position of each sequence in a fixed cache, (B) i64 on its device; empty if it grows.
  const Tensor& lengths() const { return lengths_; }
  /// Sets the lengths of a fixed cache, (B) i32 or i64; shorter ones drop positions. Throws if the cache grows.
  /// attention() reports values out of range.
  void set_lengths(const Tensor&);
  void clear();

  /// Appends keys and values to `layer`, and returns all of them: (B, NHkv, length, HS), or (B, NHkv, capacity, HS) for
  /// a fixed cache, where AttentionOptions::query_starts limits attention() to those below lengths(). Layers are in
  /// order from 0. An Error for other shapes. If a sequence is full, slice_update() throws before it writes.
  Pair append(int64_t layer, const Pair& next);
  /// Adds to lengths() the positions that all layers have appended: a number per sequence, (B) i32 or i64, or one for
  /// all. A model calls it once, when forward() ends. No effect on a cache that grows.
  /// @{
  void advance(const Tensor& positions);
  void advance(int64_t positions);
  /// @}
  /// Holds the cache until the result dies, for a forward pass. An Error in a second thread.
  [[nodiscard]] detail::OneUser::Use use() const {
    return (shared_ ? *shared_ : own_).use_within("kv_cache", "KV cache");
  }

 private:
  mutable detail::OneUser own_;
  std::shared_ptr<detail::OneUser> shared_;
  std::vector<Pair> layers_;
  Tensor lengths_;
};

}  // namespace tg
