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
  double temperature = 1;  ///< divides logits; 0: always the likeliest
  int64_t top_k = 0;       ///< k likeliest tokens; 0: all
  double top_p = 1;        ///< likeliest tokens of this probability; 1: all
  double min_p = 0;        ///< minimum relative to the likeliest; 0: all
  /// Divides positive logits of earlier tokens, multiplies negative ones (Keskar et al., 2019). 1: off.
  double repetition_penalty = 1;
  double frequency_penalty = 0;  ///< subtracted per earlier occurrence
  double presence_penalty = 0;   ///< subtracted once if the token came before
  int64_t penalty_last = 64;     ///< tokens that penalties see, prompt too; 0: all
  int64_t vocabulary = 0;        ///< ids below it, for smaller tokenizers; 0: all
  uint64_t seed = 0;             ///< used by generate(); sample() takes a generator
  void validate() const;         ///< an Error names the first wrong field
};

/// Draws a token from softmax(logits / temperature), after penalties for the tokens `before`. Keeps the top k, then of
/// these the top p (nucleus sampling: Holtzman et al., 2019), then min p (Nguyen et al., 2024). On ties the lower id is
/// likelier. -infinity excludes a token. An Error if a logit is NaN or +infinity, or all are -infinity.
int64_t sample(std::span<const float> logits, const SampleOptions&, Rng&, std::span<const int64_t> before = {});
namespace detail {
/// The probability of each token in sample().
std::vector<double> sample_probabilities(std::span<const float> logits, const SampleOptions&,
                                         std::span<const int64_t> before = {});
}  // namespace detail

/// A token and the natural logarithm of its probability.
struct Logprob {
  int64_t token = 0;
  double logprob = 0;
};
/// log_softmax() of `token`, then of the k likeliest in order, without sample()'s options: bit for bit
/// -cross_entropy(), in f64 for f64 logits (V), else f32. On ties the lower id is likelier. Errors of sample(), of a
/// wrong shape, or for a token without a logit.
std::vector<Logprob> logprobs(const Tensor& logits, int64_t token, int64_t k = 0);

/// Options of generate() and generate_batch().
struct GenerateOptions {
  /// Cache keys and values if the model has make_cache(): faster.
  bool use_cache = true;
  /// Replays a compiled function per token, with the cache: faster.
  bool compile = true;
  std::vector<int64_t> stop = {};                    ///< tokens that end a text, as its last
  std::function<bool(int64_t token)> on_token = {};  ///< gets each token; false ends the text
  /// For generate_batch(): gets prompt index and token; false ends its text.
  std::function<bool(int64_t row, int64_t token)> on_row_token = {};
  /// Called before on_token with prompt index, token, and its logits (V) of forward(), before penalties, for
  /// logprobs().
  std::function<void(int64_t row, int64_t token, const Tensor& logits)> on_logits = {};
  /// Index of generate_batch()'s first prompt in a larger list: draws do not depend on the split.
  int64_t first_row = 0;
};
/// Continues the prompt (at least one token) by at most max_tokens; returns the new tokens. The model sees the last
/// context() tokens, if it has one. With the cache a token costs one position until the text exceeds the context, then
/// a full forward pass.
std::vector<int64_t> generate(const Model&, std::span<const int64_t> prompt, int64_t max_tokens,
                              const SampleOptions& = {}, const GenerateOptions& = {});
/// generate() of several prompts. One forward pass makes a token of all texts; those beyond the context run alone,
/// ended ones stay until all ended. Row i draws from Rng{seed}.split(first_row + i).
std::vector<std::vector<int64_t>> generate_batch(const Model&, std::span<const std::vector<int64_t>> prompts,
                                                 int64_t max_tokens, const SampleOptions& = {},
                                                 const GenerateOptions& = {});

}  // namespace tg
