// GPTs that take no time, and adapters that change the output.
#pragma once
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/lora.h>

#include "support/helpers.h"

namespace tg {

// const auto [params, model] = new_gpt(config);
struct NewGpt {
  Params params;
  Gpt model;
};
inline NewGpt new_gpt(const GptConfig& c, const Params& p = Params()) { return {p, Gpt(p, c)}; }
inline GptConfig tiny_gpt() {
  return {.vocab_size = 11, .context = 8, .layers = 2, .heads = 2, .width = 8, .init_std = 0.3};
}
inline const GptConfig kTwo{.vocab_size = 11, .context = 8, .layers = 2, .heads = 2, .width = 8};
inline Tensor two_rows() { return tensor<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4, 5}, {2, 8}); }
// B is not 0.
inline void fill(const Lora& lora, double size = 0.1) {
  StateDict s = lora.params().state();
  uint64_t seed = 1;
  for (auto& [name, t] : s)
    if (name.ends_with(".lora_b")) t = random(t.shape(), seed++, -size, size).to(t.dtype());
  lora.params().assign(s);
}
// In [least, most].
struct Draw {
  Rng rng;
  int64_t operator()(int64_t least, int64_t most) { return least + int64_t(rng.below(uint64_t(most - least + 1))); }
  bool chance(int64_t of) { return (*this)(1, of) == 1; }
};
inline GptConfig some_gpt(Draw& draw) {
  GptConfig c{.vocab_size = draw(11, 300), .context = 300, .layers = draw(1, 2), .width = 8 * draw(2, 9)};
  c.kv_heads = draw(1, 2), c.heads = c.kv_heads * draw(1, 5), c.head_dim = 2 * draw(2, 32), c.ff_width = draw(9, 90);
  c.bias = draw.chance(2), c.tied_head = draw.chance(2), c.qk_norm = draw.chance(3), c.init_std = 0.2;
  if (draw.chance(2)) c.positions = Positions::rope;
  if (draw.chance(2)) c.norm = NormKind::rms_norm;
  if (draw.chance(2)) c.activation = Activation::swiglu;
  if (draw.chance(4)) c.activation = Activation::relu2, c.logit_cap = 15, c.embedding_norm = true;
  if (draw.chance(4)) c.qk_norm_affine = false, c.attn_scale = 0.12, c.rope_scaling.fraction = 0.5;
  if (c.positions == Positions::learned) c.rope_scaling = {};
  return c;
}

}  // namespace tg
