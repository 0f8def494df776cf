/// @file
/// Sampling from a language model: generate() continues a prompt, generate_batch() several. Equal seeds give equal
/// tokens on any number of threads. sample() draws a token from logits: penalties, temperature, top-k, top-p and min-p,
/// in the order of Hugging Face's transformers.
#pragma once
#include <tapegrad/models/model/model.h>

#include <cstdint>
#include <functional>
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

/// Options of generate() and generate_batch().
struct GenerateOptions {
  /// Cache keys and values, if the model has make_cache(): the same tokens, faster.
  bool use_cache = true;
  /// With the cache, replay a compiled function for each token: the same tokens, faster.
  bool compile = true;
  std::vector<int64_t> stop = {};                    ///< tokens that end a text and are its last
  std::function<bool(int64_t token)> on_token = {};  ///< called with each token; false ends the text
  /// For generate_batch(): called with the prompt's index and each token. false ends its text.
  std::function<bool(int64_t row, int64_t token)> on_row_token = {};
  /// Called before on_token with the prompt's index, the token, and the logits (V) that it was drawn from, before
  /// penalties: for logprobs().
  std::function<void(int64_t row, int64_t token, std::span<const float> logits)> on_logits = {};
  /// Index of generate_batch()'s first prompt in a larger list, so that draws do not depend on the split.
  int64_t first_row = 0;
};
/// Continues the prompt (at least one token) by at most max_tokens, and returns the new tokens. The model sees the last
/// context() tokens (all without context()). With the cache a token costs one position until the text exceeds the
/// context. Then the window slides, and each token costs a full forward pass.
std::vector<int64_t> generate(const Model&, std::span<const int64_t> prompt, int64_t max_tokens,
                              const SampleOptions& = {}, const GenerateOptions& = {});
/// Continues several prompts of any lengths like generate(), and returns the new tokens of each. One forward pass makes
/// a token of all texts. Row i draws from Rng{seed}.split(first_row + i). Ended texts stay in the pass, without effect,
/// until all have ended. Texts longer than the context are computed alone.
std::vector<std::vector<int64_t>> generate_batch(const Model&, std::span<const std::vector<int64_t>> prompts,
                                                 int64_t max_tokens, const SampleOptions& = {},
                                                 const GenerateOptions& = {});

}  // namespace tg
