#include <tapegrad/models/nn/kv_cache.h>
#include <tapegrad/ops/shape_ops.h>

namespace tg {

KvCache::Pair KvCache::append(int64_t layer, const Pair& next) {
  const int64_t known = int64_t(layers_.size());
  TG_CHECK(layer >= 0 && layer <= known, state,
           "[kv_cache] layer {} comes after {} layers. They must come in order from 0.", layer, known);
  if (layer == known) {
    TG_CHECK(
        known == 0 || layers_[0].k.size(2) == next.k.size(2), state,
        "[kv_cache] layer {} is new, and layer 0 holds {} positions already. A cache belongs to one model; clear() it "
        "first.",
        layer, layers_[0].k.size(2) - next.k.size(2));
    // A copy: next is a view of the queries, keys and values of a whole layer, which would stay alive with it.
    layers_.push_back({next.k.contiguous(), next.v.contiguous()});
    return layers_.back();
  }
  Pair& held = layers_[size_t(layer)];
  Shape expected = held.k.shape();
  if (next.k.ndim() == 4) expected[2] = next.k.size(2);
  TG_CHECK(next.k.shape() == expected && next.v.shape() == expected && next.k.dtype() == held.k.dtype(), shape,
           "[kv_cache] layer {} holds keys {}, the next are {}. A cache belongs to one model and one batch; clear() it "
           "first.",
           layer, held.k, next.k);
  held = {concat({held.k, next.k}, 2), concat({held.v, next.v}, 2)};
  return held;
}

}  // namespace tg
