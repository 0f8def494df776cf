/// @file
/// Training of byte-level BPE tokenizers.
#pragma once
#include <tapegrad/models/tokenizers/bpe.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tg {

/// Settings of train_bpe().
struct BpeTraining {
  int64_t vocab_size = 32768;          ///< maximum number of ids, at most 2^20
  std::string pattern = "gpt2";        ///< splits texts: gpt2, llama3 or qwen2
  std::vector<std::string> special{};  ///< separate texts in a file
  int64_t min_frequency = 2;           ///< least count of merged pairs
};

/// Trains a byte-level BPE tokenizer on text files (Sennrich et al. 2016, arXiv:1508.07909), with the tokens, ids and
/// merges of BpeTrainer of Hugging Face's tokenizers. Ids: special tokens, the 256 bytes in the order of their
/// characters, merges. Merges the most frequent pair of ids, of equal ones the least pair, up to vocab_size ids, or
/// until no pair has min_frequency; vocab_size() of the result says how many there are.
///
/// Each file is a text, split as BpeTokenizer::encode() does with parse_special; bytes that are not UTF-8 count too.
/// Counts on num_threads() threads, which do not change the result. Memory has the distinct pre-tokens, their pairs,
/// and about 1 MB of text per thread; more where the pattern allows no cut in a text.
///
/// An Error for wrong settings, no file, or a file that is missing, empty, a token file or of another format.
BpeTokenizer train_bpe(std::span<const std::string> paths, const BpeTraining& = {});

namespace detail {
// Distinct pre-tokens and counts, unordered. Reads about `chunk` bytes at a time.
using PreTokenCounts = std::vector<std::pair<std::string, int64_t>>;
PreTokenCounts count_pre_tokens(std::span<const std::string> paths, const BpeTraining&, size_t chunk = 1 << 20);
}  // namespace detail

}  // namespace tg
