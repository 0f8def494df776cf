/// @file
/// Draws tokens from logits: penalties, temperature, top-k, top-p and min-p, in the order of Hugging Face's
/// transformers.
#pragma once
#include <tapegrad/core/rng.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tg {

/// Options of sample().
struct SampleOptions {
  double temperature = 1;  ///< divides the logits; 0: always the most likely token
  int64_t top_k = 0;       ///< draw from the k most likely tokens; 0: all
  double top_p = 1;        ///< likeliest tokens that reach this probability; 1: all
  double min_p = 0;        ///< least probability relative to the likeliest; 0: all
  /// Divides the positive logit of an earlier token, multiplies a negative one (Keskar et al., 2019). 1: no change.
  double repetition_penalty = 1;
  double frequency_penalty = 0;  ///< subtracted from a logit per earlier occurrence
  double presence_penalty = 0;   ///< subtracted from a logit once if the token came before
  int64_t penalty_last = 64;     ///< last tokens that penalties see, prompt too; 0: all
  int64_t vocabulary = 0;        ///< draw ids below it, if the tokenizer has fewer; 0: all
  uint64_t seed = 0;             ///< for generate(); sample() takes a generator
  void validate() const;         ///< throws an Error that names the first wrong field
};

/// Draws a token from softmax(logits / temperature), after penalties for the tokens `before`. Keeps the top k, then,
/// with the remaining probabilities, the top p (nucleus sampling: Holtzman et al., 2019), then those that reach min p
/// (Nguyen et al., 2024). The lower of equal logits counts as likelier. A logit of -infinity excludes its token. An
/// Error if a logit is NaN or +infinity, or all are -infinity.
int64_t sample(std::span<const float> logits, const SampleOptions&, Rng&, std::span<const int64_t> before = {});
/// The probability of each token in sample().
std::vector<double> sample_probabilities(std::span<const float> logits, const SampleOptions&,
                                         std::span<const int64_t> before = {});

/// A token and the natural logarithm of its probability.
struct Logprob {
  int64_t token = 0;
  double logprob = 0;
};
/// log_softmax(logits) of `token`, then of the k likeliest tokens in order: the model's own distribution, which no
/// option of sample() changes. The lower of equal logits counts as likelier. An Error as of sample(), or for a token
/// without a logit.
std::vector<Logprob> logprobs(std::span<const float> logits, int64_t token, int64_t k = 0);

}  // namespace tg
