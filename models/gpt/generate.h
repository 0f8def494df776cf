/// @file
/// Sampling from a Gpt: sample() draws one token from logits, generate() continues a prompt. Text and tokenizers are in
/// models/data. The same seed gives the same tokens, on any number of threads.
#pragma once
#include <tapegrad/models/gpt/gpt.h>

#include <functional>
#include <span>

namespace tg {

struct SampleOptions {
  double temperature = 1;  ///< divides the logits; 0: always the most likely token
  int64_t top_k = 0;       ///< only the k most likely tokens; 0: all
  double top_p = 1;        ///< only the most likely tokens that together reach this probability; 1: all
  uint64_t seed = 0;       ///< of generate(); sample() is given its generator
  void validate() const;   ///< an Error names the field that is wrong
};

/// A token drawn from softmax(logits / temperature), cut to the top k and then, with the probabilities that are left,
/// to the top p (nucleus sampling: Holtzman et al. 2019). Of equal logits the lower token counts as the more likely
/// one. A logit of -inf excludes its token. An Error when a logit is nan or +inf, or when all are -inf.
int64_t sample(std::span<const float> logits, const SampleOptions&, Rng&);

struct GenerateOptions {
  bool use_cache = true;                        ///< keep keys and values: the same tokens, in less time
  std::function<bool(int64_t token)> on_token;  ///< called with each new token; false ends the text after it
};
/// Continues the prompt (at least one token) by at most max_tokens; returns the new tokens only. The model sees the
/// last `context` tokens. While the text fits, the cache makes a token cost one position; beyond it the window slides,
/// all positions change with it, and each token costs a whole forward pass, with the cache or without.
std::vector<int64_t> generate(const Gpt&, std::span<const int64_t> prompt, int64_t max_tokens,
                              const SampleOptions& = {}, const GenerateOptions& = {});

}  // namespace tg
