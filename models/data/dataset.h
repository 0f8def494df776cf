/// @file
/// Token sequences, random training batches, evaluation windows.
#pragma once
#include <tapegrad/models/data/batch.h>
#include <tapegrad/models/data/token_file.h>
#include <tapegrad/models/tokenizers/tokenizer.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// A sequence of token ids. Copies and slices share memory.
class TokenData {
 public:
  /// Copies ids in [0, 2^31). `name` names the data in messages.
  static TokenData from_tokens(std::span<const int64_t> tokens, std::string name = "the data");
  /// Tokens of a text: 2 bytes each, or 4 above 65536 ids.
  static TokenData from_text(const Tokenizer&, std::string_view text, std::string name = "the data");
  /// The tokens that produce(take) passes to take(): 2 bytes each, or 4 above 65536 ids.
  static TokenData from_tokens(int64_t vocab_size, const std::function<void(const Tokenizer::Take& take)>& produce,
                               std::string name = "the data");
  /// open_token_file(). Reads on demand from the open file.
  static TokenData from_file(const std::string& path, TokenType raw = TokenType::u16);
  /// The parts as one sequence, without a copy. Windows cross parts: llm.c's shards split documents.
  static TokenData join(std::span<const TokenData> parts, std::string name = "the data");
  /// The groups as one sequence. ShuffledBatches draws a window's group by weight. Windows stay inside groups. An Error
  /// unless each weight is finite and above 0.
  static TokenData mix(std::span<const TokenData> groups, std::span<const double> weights,
                       std::string name = "the data");
  /// The same data, with `val` as its validation part, which split() returns for any fraction.
  TokenData with_validation(TokenData val) const;
  const TokenData* validation() const { return val_.get(); }  ///< null unless set
  /// Writes .npy, or .bin without a header by default. Ids have 2 or 4 bytes, like these. An Error for another path, or
  /// for 4 bytes without a header.
  void write(const std::string& path, std::optional<TokenFormat> = {}) const;
  /// An Error if a file was changed since it was opened. Renaming another file to its path is safe.
  void check_unchanged() const;

  /// Tokens.
  int64_t size() const;
  /// Bytes in memory; files: 0.
  int64_t bytes() const;
  const std::string& name() const { return name_; }
  /// Copies tokens from position `begin` into `to`. An Error if there are too few, or a file shrank.
  void copy(int64_t begin, std::span<int32_t> to) const;
  TokenData slice(int64_t begin, int64_t end) const;  ///< tokens [begin, end), without groups

  struct Split;
  /// First int(fraction * size()) tokens for training, the rest for validation; of a mixture, those of each group.
  /// 0 < fraction <= 1.
  Split split(double fraction) const;
  /// Calls f(position, tokens) for all tokens in order in chunks.
  void for_each(const std::function<void(int64_t at, std::span<const int32_t> tokens)>& f) const;
  /// An Error names the first token at or above vocab_size, and its position.
  void check_vocabulary(int64_t vocab_size) const;

 private:
  friend class ShuffledBatches;
  struct Part {
    TokenView view;
    int64_t end = 0;  // end of the group in the sequence
  };
  struct Group {
    int64_t begin, end;
    double weight;
  };
  TokenData(std::vector<Part> parts, std::string name);
  bool is_wide() const;               // 4 bytes per token
  std::vector<Group> groups() const;  // groups of a mixture, else one
  template <class F> void for_each_part(int64_t begin, int64_t end, F f) const;
  std::vector<Part> parts_;
  std::vector<Group> groups_;  // groups of a mixture
  std::shared_ptr<const TokenData> val_;
  std::string name_;
};
/// Training and validation data.
struct TokenData::Split {
  TokenData train, val;
};

/// Order of training windows. random: uniform positions among all size - T. epochs, not for mixtures: each of the (size
/// - 1) / T adjacent windows once per epoch, in a new order each. sequential, not for mixtures: adjacent windows in
/// order, those of a step from one file; the rest of a file, shorter than a step, is left out (llm.c's loader).
enum class SampleOrder { random, epochs, sequential };

/// Batches of windows. The generator is the only state; in epochs and in order its offset counts windows.
class ShuffledBatches {
 public:
  /// An Error unless batch and context are at least 1 and the data, or each group of it, has at least context + 1
  /// tokens. sequential: each file has a step of `accumulate` batches.
  ShuffledBatches(TokenData data, int64_t batch, int64_t context, Rng rng, SampleOrder = SampleOrder::random,
                  int64_t accumulate = 1);
  /// (batch, context).
  Batch next() { return next(rng_); }
  Batch next(Rng&) const;
  const Rng& rng() const { return rng_; }
  void set_rng(const Rng& rng) { rng_ = rng; }

 private:
  TokenData data_;
  int64_t batch_, context_;
  Rng rng_;
  SampleOrder order_;
  std::vector<std::pair<int64_t, uint64_t>> runs_;  // sequential: begin of a file's windows, windows up to its end
};

/// Adjacent windows of `context` tokens in order: each token but the first is a target once. Batches have up to `batch`
/// windows; a last, shorter window is a batch. To average batch means, weigh them by targets.numel().
class SequentialBatches {
 public:
  /// An Error unless batch and context are at least 1 and the data has at least 2 tokens.
  SequentialBatches(TokenData data, int64_t batch, int64_t context);
  /// The i-th batch from 0, none after the last.
  std::optional<Batch> at(int64_t i) const;
  int64_t targets() const { return data_.size() - 1; }

 private:
  TokenData data_;
  int64_t batch_, context_;
};

/// Training batches of ShuffledBatches and, if `validate`, validation batches of SequentialBatches, with their Errors.
BatchSource token_batches(const TokenData::Split&, int64_t batch, int64_t context, bool validate = true,
                          SampleOrder = SampleOrder::random, int64_t accumulate = 1);

}  // namespace tg
