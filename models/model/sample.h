/// @file
/// Drawing a token from logits: penalties, temperature, top-k, top-p and min-p, in the order of Hugging Face's
/// transformers.
#pragma once
#include <tapegrad/core/rng.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tg {

/// How tokens are drawn.
struct SampleOptions {
  double temperature = 1;  ///< divides the logits; 0 means always the most likely token
  int64_t top_k = 0;       ///< draw from the k most likely tokens only; 0 means all
  double top_p = 1;        ///< draw from the most likely tokens that together reach this probability; 1 means all
  double min_p = 0;        ///< draw tokens only that are so likely, relative to the most likely one; 0 means all
  /// A positive logit is divided by it, and another multiplied, if the token came before (Keskar et al. 2019); 1 means
  /// no change.
  double repetition_penalty = 1;
  double frequency_penalty = 0;  ///< is taken from a logit for each time that the token came before
  double presence_penalty = 0;   ///< is taken from a logit once if the token came before
  int64_t penalty_last = 64;     ///< penalties look at so many tokens before, the prompt's too; 0 means all
  int64_t vocabulary = 0;  ///< draw only tokens below it, for a tokenizer with fewer ids than the model; 0 means all
  uint64_t seed = 0;       ///< of generate(); sample() is given its generator
  void validate() const;   ///< throws an Error that names the first wrong field
};

/// A token drawn from softmax(logits / temperature), after the penalties for the tokens that came `before`. It is cut
/// to the top k, then, with the remaining probabilities, to the top p (nucleus sampling: Holtzman et al. 2019), and
/// then to those that reach min p (Nguyen et al. 2024). Among equal logits the lower token counts as more likely. A
/// logit of -infinity excludes its token. An Error if a logit is NaN or +infinity, or if all are -infinity.
int64_t sample(std::span<const float> logits, const SampleOptions&, Rng&, std::span<const int64_t> before = {});
/// The probabilities with which sample() draws each token, as many as there are logits.
std::vector<double> sample_probabilities(std::span<const float> logits, const SampleOptions&,
                                         std::span<const int64_t> before = {});

}  // namespace tg
