// self_attention() and rope() of heads against attention() and rope() of q, k and v: the same bits.
#pragma once
#include "support/effort.h"
#include "support/helpers.h"

#include <tapegrad/ops/attention.h>
#include <tapegrad/ops/rope.h>
#include <tapegrad/ops/shape_ops.h>

namespace tg {

// y, and the gradient of x (B, T, NH + 2 kv, HS), whose heads are rotated first.
inline std::vector<Tensor> attended(const Tensor& x, int64_t kv, const AttentionOptions& o, bool by_parts) {
  const Tensor leaf = x.detach().requires_grad_();
  const int64_t heads = x.size(2) - 2 * kv;
  const RopeOptions turns{.start = o.query_starts ? 0 : 3, .starts = o.query_starts};
  Tensor y;
  if (by_parts) {
    const Tensors parts = split(leaf, {heads, kv, kv}, 2);
    const auto in_heads = [](const Tensor& t) { return transpose(t, 1, 2); };
    const Tensor q = rope(in_heads(parts[0]), turns), k = rope(in_heads(parts[1]), turns);
    y = transpose(attention(q, k, in_heads(parts[2]), o), 1, 2);
  } else {
    RopeOptions of_heads = turns;
    of_heads.heads = heads + kv;
    y = self_attention(rope(leaf, of_heads), kv, o);
  }
  const Tensor dy = random(y.shape(), 7).to(x.dtype()).to(x.device());
  return {y.detach(), backward(y, dy)[leaf]};
}
inline void check_self_attention(Device d, DType t, int64_t length, int64_t heads, int64_t kv, int64_t hs) {
  INFO(name_of(t), ", T ", length, ", heads ", heads, ", kv ", kv, ", HS ", hs);
  const Tensor x = random({2, length, heads + 2 * kv, hs}, 1).to(t).to(d);
  const auto n = [d](int64_t a, int64_t b) { return tensor<int64_t>({a, b}, {2}).to(d); };
  for (const AttentionOptions& o : {AttentionOptions{.causal = true}, AttentionOptions{.scale = 0.3},
                                    AttentionOptions{.kv_lengths = n(length, length / 2)},
                                    AttentionOptions{.causal = true, .query_starts = n(0, 1)}})
    for (const Store how : in_turns(std::vector<Store>(std::begin(kStores), std::end(kStores)))) {
      INFO("causal ", o.causal, ", lengths ", bool(o.kv_lengths), ", starts ", bool(o.query_starts), ", stored ",
           int(how));
      const auto got = attended(stored(x, how), kv, o, false), expected = attended(x, kv, o, true);
      CHECK(bits_of(got[0]) == bits_of(expected[0]));
      CHECK(bits_of(got[1]) == bits_of(expected[1]));
    }
}

}  // namespace tg
