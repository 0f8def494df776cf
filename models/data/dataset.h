/// @file
/// Data of language models: token sequences (in memory or in a file), random training batches, evaluation
/// windows.
#pragma once
#include <tapegrad/models/data/batch.h>
#include <tapegrad/models/data/tokenizer.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tg {
class InputFile;

/// Whether the path ends in .bin or .npy.
bool is_token_file(std::string_view path);

/// A sequence of token ids. Copies and slices share memory.
class TokenData {
 public:
  /// Copies ids in [0, 2^31). `name` names the data in messages.
  static TokenData from_tokens(std::span<const int64_t> tokens, std::string name = "the data");
  /// The tokens of a text: 2 bytes each for up to 65536 ids, else 4.
  static TokenData from_text(const Tokenizer&, std::string_view text, std::string name = "the data",
                             EncodeOptions = {});
  /// The tokens that produce(take) passes to `take`: 2 bytes each for up to 65536 ids, else 4.
  static TokenData from_tokens(int64_t vocab_size, const std::function<void(const Tokenizer::Take& take)>& produce,
                               std::string name = "the data");
  /// A token file: .npy (one-dimensional uint16 or uint32), else 16-bit little-endian ids without a header. Tokens are
  /// read on demand. An Error for an empty file, a wrong size, or another kind of array.
  static TokenData from_file(const std::string& path);
  /// Writes a token file: .npy with uint16 or uint32, as the vocabulary needs, or .bin with 16 bits. An Error for
  /// another path, or for .bin when tokens have 4 bytes.
  void write(const std::string& path) const;
  /// An Error if the file was changed since it was opened. Renaming another file to its path is safe.
  void check_unchanged() const;

  /// The number of tokens.
  int64_t size() const;
  /// Bytes of tokens in memory; 0 for a file.
  int64_t bytes() const;
  const std::string& name() const { return name_; }
  /// Copies tokens from position `begin` into `to`. An Error if there are too few, or the file shrank.
  void copy(int64_t begin, std::span<int32_t> to) const;
  TokenData slice(int64_t begin, int64_t end) const;  ///< the tokens [begin, end)

  struct Split;
  /// The first int(fraction * size()) tokens for training, the rest for validation. 0 < fraction <= 1.
  Split split(double fraction) const;
  /// An Error names the first token at or above vocab_size, and its position.
  void check_vocabulary(int64_t vocab_size) const;

 private:
  struct InFile {
    const InputFile* file;
    size_t begin, width;  // of the first token, and of each, in bytes
    int64_t count;
    int64_t size() const { return count; }
    InFile subspan(size_t at, size_t n) const { return {file, begin + width * at, width, int64_t(n)}; }
  };
  using View = std::variant<std::span<const uint16_t>, std::span<const int32_t>, InFile>;
  bool is_wide() const;  // 4 bytes per token
  template <class T> static TokenData keep(std::vector<T> tokens, std::string name);
  TokenData(std::shared_ptr<const void> owner, View view, std::string name)
      : owner_(std::move(owner)), view_(view), name_(std::move(name)) {}
  std::shared_ptr<const void> owner_;  // the file or vector behind view_
  View view_;
  std::string name_;
};
/// Training and validation data.
struct TokenData::Split {
  TokenData train, val;
};

/// Order of training windows. random: uniform positions among all size - T. epochs: each of the (size - 1) / T adjacent
/// windows once per epoch, in a new order each.
enum class SampleOrder { random, epochs };

/// Batches of windows. The generator is the only state; in epochs its offset counts windows.
class ShuffledBatches {
 public:
  /// An Error unless batch and context are at least 1 and the data has at least context + 1 tokens.
  ShuffledBatches(TokenData data, int64_t batch, int64_t context, Rng rng, SampleOrder = SampleOrder::random);
  /// The next batch: (batch, context).
  Batch next();
  const Rng& rng() const { return rng_; }
  /// Continues from a generator that rng() returned.
  void set_rng(const Rng& rng) { rng_ = rng; }

 private:
  TokenData data_;
  int64_t batch_, context_;
  Rng rng_;
  SampleOrder order_;
};

/// Adjacent windows of `context` tokens in order: every token but the first is a target once. Batches have up to
/// `batch` windows; a last, shorter window is a batch. To average batch means, weigh them by targets.numel().
class SequentialBatches {
 public:
  /// An Error unless batch and context are at least 1 and the data has at least 2 tokens.
  SequentialBatches(TokenData data, int64_t batch, int64_t context);
  /// The i-th batch from 0, or nothing after the last.
  std::optional<Batch> at(int64_t i) const;
  /// The number of targets in all batches.
  int64_t targets() const { return data_.size() - 1; }

 private:
  TokenData data_;
  int64_t batch_, context_;
};

/// Training batches of ShuffledBatches and, if `validate`, validation batches of SequentialBatches, with their Errors.
BatchSource token_batches(const TokenData::Split&, int64_t batch, int64_t context, bool validate = true,
                          SampleOrder = SampleOrder::random);

}  // namespace tg
