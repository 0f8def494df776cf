/// @file
/// Sampling from a language model: generate() continues a prompt, generate_batch() several at once; sample.h draws the
/// tokens. Text, tokenizers and stop strings are in models/data. Equal seeds give equal tokens, on any number of
/// threads.
#pragma once
#include <tapegrad/models/model/model.h>
#include <tapegrad/models/model/sample.h>

#include <functional>
#include <span>

namespace tg {

/// Options of generate() and generate_batch().
struct GenerateOptions {
  bool use_cache = true;  ///< keep keys and values, if the model has a make_cache(): the same tokens in less time
  bool compile = true;    ///< with the cache, replay a compiled function for each token: the same tokens in less time
  std::vector<int64_t> stop = {};                    ///< tokens that end a text: the first of them is its last token
  std::function<bool(int64_t token)> on_token = {};  ///< called with each new token; false ends the text after it
  /// The same of generate_batch(), with the number of the prompt.
  std::function<bool(int64_t row, int64_t token)> on_row_token = {};
  /// The number of the first prompt of generate_batch(), when the prompts are a part of more: draws do not depend on
  /// how these are divided.
  int64_t first_row = 0;
};
/// Continues the prompt (at least one token) by at most max_tokens, and returns the new tokens only. The model sees the
/// last context() tokens, or all of them if it has no context(). While the text fits into the context, the cache makes
/// each token cost one position. Beyond it the window slides and all positions change, so each token costs a whole
/// forward pass.
std::vector<int64_t> generate(const Model&, std::span<const int64_t> prompt, int64_t max_tokens,
                              const SampleOptions& = {}, const GenerateOptions& = {});
/// Continues several prompts, of any lengths, as generate() does each: a token of all texts costs one forward pass. The
/// new tokens of each are returned. Row i draws from Rng{seed}.split(first_row + i), whatever the other rows do. A text
/// that has ended is computed on, without effect, until all have; one that is longer than the context is computed
/// alone.
std::vector<std::vector<int64_t>> generate_batch(const Model&, std::span<const std::vector<int64_t>> prompts,
                                                 int64_t max_tokens, const SampleOptions& = {},
                                                 const GenerateOptions& = {});

}  // namespace tg
