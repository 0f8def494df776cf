// Training with split weights against training with whole ones, bit for bit, on any device.
#pragma once
#include "support/small_run.h"

#include <bit>

namespace tg {

// Splits 768 weights: within few steps, one is halfway between two bf16.
inline GptConfig few_weights() {
  GptConfig g = tiny_model();
  g.width = 8;
  return g;
}
inline TrainConfig split_config(bool splits = true) {
  TrainConfig c = tiny_train();
  c.max_steps = 20, c.eval_every = 4, c.dtype = DType::bf16, c.split_weights = splits;
  return c;
}
// Whether the nearest bf16 of a weight depends on the rule for ties.
inline bool has_tie(const Params& params) {
  for (const Parameter& p : params.all())
    if (p.name.starts_with("h.") && p.tensor.ndim() == 2)
      for (const float x : values(p.tensor))
        if ((std::bit_cast<uint32_t>(x) & 0x1ffffu) == 0x8000u) return true;
  return false;
}
// Returns the steps until a weight is on a tie.
inline int64_t check_split_training(TrainConfig c, Device d, bool lazy) {
  Run split(c, few_weights(), rhyme(), d);
  c.split_weights = false, c.compile = false;
  Run whole(c, few_weights(), rhyme(), d);
  bool tie = has_tie(whole.params);
  while (!whole.trainer.done() && !tie) {
    const StepRecord want = whole.trainer.step();
    const Mode how(lazy);
    const StepRecord got = split.trainer.step();
    tie = has_tie(whole.params);  // then a validation differs, and the next step
    if (!tie) CHECK(numbers_of({got}) == numbers_of({want}));
  }
  CHECK(snapshot(split.trainer.state()) == snapshot(whole.trainer.state()));
  return whole.trainer.steps();
}

}  // namespace tg
