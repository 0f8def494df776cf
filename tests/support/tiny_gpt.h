// Two-layer GPTs that take no time, and adapters that change the output.
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

}  // namespace tg
