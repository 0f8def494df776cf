/// @file
/// Data of language models: texts, token sequences (in memory or mapped from a file), random batches to train on and
/// windows in order to evaluate on. No tokenizer and no model here; train/ puts them together.
#pragma once
#include <tapegrad/core/rng.h>
#include <tapegrad/core/tensor.h>

#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace tg {

/// The bytes of all files, one after the other. An Error for an empty list and for a path that is missing, a folder or
/// an empty file.
std::string read_texts(std::span<const std::string> paths);

/// A sequence of token ids; copies and slices share the memory. Token positions count from 0.
class TokenData {
 public:
  /// Token ids in [0, 2^31). `name` is what messages call the data.
  static TokenData from_tokens(std::span<const int64_t> tokens, std::string name = "the data");
  /// A file of 16-bit little-endian ids without a header, mapped and not read; an Error when it is empty or of odd
  /// size.
  static TokenData from_file(const std::string& path);

  int64_t size() const;
  const std::string& name() const { return name_; }
  /// Tokens begin, begin + 1, ... as many as `to` takes; an Error when they are not all there.
  void copy(int64_t begin, std::span<int32_t> to) const;
  TokenData slice(int64_t begin, int64_t end) const;  ///< tokens [begin, end)

  struct Split;
  /// The first int(fraction * size()) tokens to train on, the rest to validate on. 0 < fraction <= 1.
  Split split(double fraction) const;
  /// An Error that names the first token which is not below vocab_size, and its position.
  void check_vocabulary(int64_t vocab_size) const;

 private:
  using View = std::variant<std::span<const uint16_t>, std::span<const int32_t>>;
  TokenData(std::shared_ptr<const void> owner, View view, std::string name)
      : owner_(std::move(owner)), view_(view), name_(std::move(name)) {}
  std::shared_ptr<const void> owner_;  // the mapping or vector that view_ looks into
  View view_;
  std::string name_;
};
struct TokenData::Split {
  TokenData train, val;
};

/// Both (B, T) i32 on the CPU: targets[b, t] is the token that follows tokens[b, t] in the data.
struct Batch {
  Tensor tokens, targets;
};

/// Batches of windows that begin at random positions, each of the size - T possible ones equally likely. The generator
/// is the only state: with an equal one the same batches follow.
class Batches {
 public:
  /// An Error unless batch and context are at least 1 and the data has at least context + 1 tokens.
  Batches(TokenData data, int64_t batch, int64_t context, Rng rng);
  Batch next();
  const Rng& rng() const { return rng_; }
  void set_rng(const Rng& rng) { rng_ = rng; }  ///< to go on where rng() was read

 private:
  TokenData data_;
  int64_t batch_, context_;
  Rng rng_;
};

/// The data in order, cut into windows of `context` tokens that follow each other: every token but the first is a
/// target exactly once. Batches have up to `batch` windows; the tokens left at the end make a batch of one shorter
/// window. A mean over all targets weighs the mean of each batch by targets.numel().
class Windows {
 public:
  /// An Error unless batch and context are at least 1 and the data has at least 2 tokens.
  Windows(TokenData data, int64_t batch, int64_t context);
  bool next(Batch& batch);                              ///< false at the end; `batch` is then left as it was
  int64_t targets() const { return data_.size() - 1; }  ///< of all batches together

 private:
  TokenData data_;
  int64_t batch_, context_, at_ = 0;
};

}  // namespace tg
