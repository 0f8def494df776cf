/// @file
/// Sampling from a language model: sample() draws one token from logits, generate() continues a prompt,
/// generate_batch() several at once. Text and tokenizers are in models/data. Equal seeds give equal tokens, on any
/// number of threads.
#pragma once
#include <tapegrad/models/model/model.h>

#include <functional>
#include <span>

namespace tg {

/// How tokens are drawn.
struct SampleOptions {
  double temperature = 1;  ///< divides the logits; 0 means always the most likely token
  int64_t top_k = 0;       ///< draw from the k most likely tokens only; 0 means all
  double top_p = 1;        ///< draw from the most likely tokens that together reach this probability; 1 means all
  int64_t vocabulary = 0;  ///< draw only tokens below it, for a tokenizer with fewer ids than the model; 0 means all
  uint64_t seed = 0;       ///< of generate(); sample() is given its generator
  void validate() const;   ///< throws an Error that names the first wrong field
};

/// A token drawn from softmax(logits / temperature), cut to the top k and then, with the remaining probabilities, to
/// the top p (nucleus sampling: Holtzman et al. 2019). Among equal logits the lower token counts as more likely. A
/// logit of -infinity excludes its token. An Error if a logit is NaN or +infinity, or if all are -infinity.
int64_t sample(std::span<const float> logits, const SampleOptions&, Rng&);

/// Options of generate() and generate_batch().
struct GenerateOptions {
  bool use_cache = true;  ///< keep keys and values, if the model has a fixed_cache(): the same tokens in less time
  bool compile = true;    ///< with the cache, replay a compiled function for each token: the same tokens in less time
  std::vector<int64_t> stop = {};                    ///< tokens that end a text: the first of them is its last token
  std::function<bool(int64_t token)> on_token = {};  ///< called with each new token; false ends the text after it
  /// The same of generate_batch(), with the number of the prompt.
  std::function<bool(int64_t row, int64_t token)> on_row_token = {};
};
/// Continues the prompt (at least one token) by at most max_tokens, and returns the new tokens only. The model sees the
/// last context() tokens, or all of them if it has no context(). While the text fits into the context, the cache makes
/// each token cost one position. Beyond it the window slides and all positions change, so each token costs a whole
/// forward pass.
std::vector<int64_t> generate(const Model&, std::span<const int64_t> prompt, int64_t max_tokens,
                              const SampleOptions& = {}, const GenerateOptions& = {});
/// Continues several prompts, of any lengths, as generate() does each: a token of all texts costs one forward pass. The
/// new tokens of each are returned. Row i draws from Rng{seed}.split(i), whatever the other rows do. A text that has
/// ended is computed on, without effect, until all have; one that is longer than the context is computed alone.
std::vector<std::vector<int64_t>> generate_batch(const Model&, std::span<const std::vector<int64_t>> prompts,
                                                 int64_t max_tokens, const SampleOptions& = {},
                                                 const GenerateOptions& = {});

}  // namespace tg
