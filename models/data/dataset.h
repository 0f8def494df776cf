/// @file
/// Data of language models: texts, token sequences (in memory or in a file), random batches to train on, and windows in
/// order to evaluate on. There is no model here; models/train puts data and models together.
#pragma once
#include <tapegrad/models/data/batch.h>
#include <tapegrad/models/data/tokenizer.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tg {
class InputFile;

/// The bytes of all files, one after the other. An Error if the list is empty, or a path is missing, a folder or an
/// empty file.
std::string read_texts(std::span<const std::string> paths);

/// Whether a path is that of a token file, by its end: .bin or .npy.
bool is_token_file(std::string_view path);

/// A sequence of token ids. Copies and slices share the memory. Positions count from 0.
class TokenData {
 public:
  /// A copy of token ids in [0, 2^31). `name` is the name of the data in messages.
  static TokenData from_tokens(std::span<const int64_t> tokens, std::string name = "the data");
  /// The tokens of a text, 2 bytes each if the vocabulary has at most 65536 ids, else 4.
  static TokenData from_text(const Tokenizer&, std::string_view text, std::string name = "the data",
                             EncodeOptions = {});
  /// A token file: of NumPy (.npy), an array of one dimension of uint16 or uint32; any other is 16-bit little-endian
  /// ids without a header. Only the tokens that are asked for are read. An Error if the file is empty, of another size
  /// than its tokens have, or an array of another kind.
  static TokenData from_file(const std::string& path);
  /// Creates or replaces a token file: .npy, of uint16 or uint32 as the vocabulary needs, or .bin, of 16 bits. An Error
  /// for another path, and for .bin when the tokens take 4 bytes each.
  void write(const std::string& path) const;
  /// Throws an Error if the data is in a file that was changed since it was opened. It does no harm to rename another
  /// file to its path.
  void check_unchanged() const;

  /// The number of tokens.
  int64_t size() const;
  /// The bytes of memory that the tokens take; none if they are in a file.
  int64_t bytes() const;
  const std::string& name() const { return name_; }
  /// Copies as many tokens as `to` takes, from position `begin` on. An Error if there are not so many, or no longer.
  void copy(int64_t begin, std::span<int32_t> to) const;
  TokenData slice(int64_t begin, int64_t end) const;  ///< the tokens [begin, end)

  struct Split;
  /// The first int(fraction * size()) tokens to train on, the rest to validate on. 0 < fraction <= 1.
  Split split(double fraction) const;
  /// Throws an Error that names the first token that is not below vocab_size, and its position.
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
  bool is_wide() const;  // 4 bytes for each token
  template <class T> static TokenData keep(std::vector<T> tokens, std::string name);
  TokenData(std::shared_ptr<const void> owner, View view, std::string name)
      : owner_(std::move(owner)), view_(view), name_(std::move(name)) {}
  std::shared_ptr<const void> owner_;  // the file or vector that view_ looks into
  View view_;
  std::string name_;
};
/// Data to train on and data to validate on.
struct TokenData::Split {
  TokenData train, val;
};

/// In which order windows come to train on: at random positions, each of the size - T possible ones equally likely; or
/// in epochs: the (size - 1) / T windows that follow each other, each once in an order of the epoch, then again in
/// another order.
enum class SampleOrder { random, epochs };

/// Batches of windows in an order. The generator is the only state: equal generators give equal batches. In epochs its
/// offset counts the windows so far.
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

/// The data in order, cut into windows of `context` tokens that follow each other: every token but the first is a
/// target exactly once. Batches have up to `batch` windows; the tokens left at the end make a batch of one shorter
/// window. A mean over all targets weighs the mean of each batch by targets.numel().
class SequentialBatches {
 public:
  /// An Error unless batch and context are at least 1 and the data has at least 2 tokens.
  SequentialBatches(TokenData data, int64_t batch, int64_t context);
  /// The i-th batch, counted from 0; nothing after the last.
  std::optional<Batch> at(int64_t i) const;
  /// The number of targets in all batches together.
  int64_t targets() const { return data_.size() - 1; }

 private:
  TokenData data_;
  int64_t batch_, context_;
};

/// Batches of up to `batch` windows of `context` tokens: to train on as ShuffledBatches makes them, and to validate on
/// as SequentialBatches does, unless `validate` is false. Errors are those of both.
BatchSource token_batches(const TokenData::Split&, int64_t batch, int64_t context, bool validate = true,
                          SampleOrder = SampleOrder::random);

}  // namespace tg
