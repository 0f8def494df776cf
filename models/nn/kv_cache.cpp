#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/nn/kv_cache.h>
#include <tapegrad/ops/binary.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>

namespace tg {
namespace {
Tensor positions_of(const Tensor& t) {
  TG_CHECK(is_index(t.dtype()), dtype, "[kv_cache] {} are no positions. They must be i32 or i64: use .to(DType::i64).",
           t);
  return t.to(DType::i64).detach();
}
}  // namespace

KvCache KvCache::with_capacity(const KvCacheOptions& s) {
  for (const auto& [name, n] : {std::pair{"layers", s.layers},
                                {"batch", s.batch},
                                {"kv_heads", s.kv_heads},
                                {"capacity", s.capacity},
                                {"head_size", s.head_size}})
    TG_CHECK(n >= 1, value, "[kv_cache] {} is {}. It must be 1 or more.", name, n);
  KvCache r;
  const auto memory = [&] { return zeros({s.batch, s.kv_heads, s.capacity, s.head_size}, s.dtype, s.device); };
  for (int64_t i = 0; i < s.layers; ++i) r.layers_.push_back({memory(), memory()});
  r.lengths_ = zeros({s.batch}, DType::i64, s.device);
  r.shared_ = std::make_shared<detail::OneUser>();
  return r;
}

int64_t KvCache::length() const {
  const auto alone = use();
  if (!has_capacity()) return layers_.empty() ? 0 : layers_[0].k.size(2);
  return std::ranges::max(lengths_.to_vector<int64_t>());
}
void KvCache::set_lengths(const Tensor& t) {
  const auto alone = use();
  TG_CHECK(has_capacity(), state,
           "[kv_cache] this cache grows: all its sequences have length {}. Make it by with_capacity().", length());
  lengths_.assign(positions_of(t));
}
void KvCache::clear() {
  const auto alone = use();
  if (has_capacity())
    set_lengths(zeros(lengths_.shape(), DType::i64, lengths_.device()));
  else
    layers_.clear();
}
void KvCache::advance(const Tensor& positions) {
  if (!has_capacity()) return;
  const auto alone = use();
  NoGradScope off;
  lengths_.assign(lengths_ + positions_of(positions));
}
void KvCache::advance(int64_t positions) {
  if (!has_capacity()) return;
  const auto alone = use();
  NoGradScope off;
  lengths_.assign(lengths_ + double(positions));
}

KvCache::Pair KvCache::append(int64_t layer, const Pair& next) {
  const auto alone = use();
  const int64_t known = int64_t(layers_.size());
  TG_CHECK(layer >= 0 && layer <= known, state,
           "[kv_cache] layer {} comes after {} layers. They must come in order from 0.", layer, known);
  if (layer == known) {
    TG_CHECK(!has_capacity(), state,
             "[kv_cache] layer {} of a cache that was made for {} layers. A cache belongs to one model.", layer, known);
    TG_CHECK(known == 0 || layers_[0].k.size(2) == next.k.size(2), state,
             "[kv_cache] layer {} is new, and layer 0 holds {} positions already. A cache belongs to one model; "
             "clear() it first.",
             layer, layers_[0].k.size(2) - next.k.size(2));
    // A view would keep the layer's q, k, v alive.
    layers_.push_back({next.k.contiguous(), next.v.contiguous()});
    return layers_.back();
  }
  Pair& held = layers_[size_t(layer)];
  Shape expected = held.k.shape();
  if (next.k.ndim() == 4) expected[2] = next.k.size(2);
  TG_CHECK(next.k.shape() == expected && next.v.shape() == expected && next.k.dtype() == held.k.dtype(), shape,
           "[kv_cache] layer {} holds keys {}, the next are {}. A cache belongs to one model and one batch; {}.", layer,
           held.k, next.k, has_capacity() ? "make one for these" : "clear() it first");
  if (has_capacity()) {
    TG_CHECK(next.k.size(2) <= capacity(), shape,
             "[kv_cache] {} positions at once, and the capacity is {}. Pass fewer, or make a larger cache.",
             next.k.size(2), capacity());
    slice_update(held.k, 2, lengths_, next.k);
    slice_update(held.v, 2, lengths_, next.v);
    return held;
  }
  const int64_t longer = held.k.size(2) + next.k.size(2), first = layers_[0].k.size(2);
  TG_CHECK(layer == 0 || longer == first, state,
           "[kv_cache] layer {} would hold {} positions, and layer 0 holds {}. Layers get the same positions: clear() "
           "the cache after a pass that failed, and let one pass end before the next.",
           layer, longer, first);
  held = {concat({held.k, next.k}, 2), concat({held.v, next.v}, 2)};
  return held;
}

}  // namespace tg
