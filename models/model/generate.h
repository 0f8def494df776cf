/// @file
/// Sampling from a language model: generate() continues a prompt, generate_batch() several. Equal seeds give equal
/// tokens on any number of threads.
#pragma once
#include <tapegrad/models/model/model.h>
#include <tapegrad/models/model/sample.h>

#include <functional>
#include <span>

namespace tg {

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
