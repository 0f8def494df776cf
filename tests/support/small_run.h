// Training of a tiny GPT on a rhyme, in seconds, for comparisons with other runs.
#pragma once
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/tokenizers/tokenizer.h>
#include <tapegrad/models/train/trainer.h>

#include <map>
#include <vector>

#include "support/files.h"
#include "support/helpers.h"
#include "support/tiny_gpt.h"

namespace tg {

inline std::string rhyme() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "the cat sat on the mat, the dog ate the log.\n";
  return text;
}
inline TokenData bytes_of(const std::string& text) {
  return TokenData::from_tokens(ByteTokenizer().encode(text), "the rhyme");
}

inline GptConfig tiny_model() {
  return {.vocab_size = 256, .context = 16, .layers = 1, .heads = 2, .width = 32, .dropout = 0.1};
}
inline TrainConfig tiny_train() {
  return {.batch = 4, .max_steps = 40, .lr = 1e-2, .min_lr = 1e-3, .warmup = 5, .eval_every = 20};
}

struct Run {
  Params params;
  Gpt model;
  Trainer trainer;
  explicit Run(const TrainConfig& c, const GptConfig& g = tiny_model(), const std::string& text = rhyme(),
               Device device = {})
      : params(device, c.seed), model(params, g), trainer(model, params, bytes_of(text), c) {}
};
// Without time and memory.
inline std::vector<double> numbers_of(const std::vector<StepRecord>& all) {
  std::vector<double> v;
  for (const StepRecord& r : all) v.insert(v.end(), {r.loss, r.grad_norm, r.lr, r.val_loss.value_or(-1)});
  return v;
}
// All that a step changes.
struct Snapshot {
  int64_t step, optimizer_steps;
  Rng data, dropout;
  std::map<std::string, std::vector<std::byte>> tensors;
  bool operator==(const Snapshot&) const = default;
};
inline Snapshot snapshot(const TrainerState& s) {
  Snapshot r{s.step, s.optimizer_steps, s.data, s.dropout, {}};
  for (const auto& [name, t] : s.tensors) r.tensors[name] = bits_of(t);
  return r;
}
inline std::vector<StepRecord> rest_of(Trainer& trainer) {
  std::vector<StepRecord> all;
  trainer.run([&](const StepRecord& r) { all.push_back(r); });
  return all;
}
inline std::vector<StepRecord> records_of(const TrainConfig& c) {
  Run run(c);
  return rest_of(run.trainer);
}

}  // namespace tg
