/// @file
/// Tokenizers: bytes, characters, or BPE (bpe.h). A model stores its tokenizer as JSON, so that generation needs no
/// other file.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// The part of a text that a tokenizer can encode.
struct KnownText {
  std::string text;        ///< text without unknown characters
  int64_t characters = 0;  ///< characters of the whole text
  int64_t skipped = 0;     ///< unknown characters
  std::string first;       ///< first distinct ones: "'#' U+0023, U+000D"
};

/// Tokenizers of bytes and characters have no special tokens.
struct EncodeOptions {
  bool parse_special = false;  ///< special tokens in the text are tokens
  bool add_special = false;    ///< adds the model's tokens around a text
  std::string_view dropped{};  ///< removed between added tokens
};

/// A special token in a text: bytes [at, end), with white space from `begin`.
struct SpecialSpan {
  size_t begin, at, end;
};

/// Interface of tokenizers.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// The ids of a text, in [0, vocab_size()). decode(encode(text)) is the text.
  std::vector<int64_t> encode(std::string_view text, EncodeOptions = {}) const;
  /// Takes the next ids of a text.
  using Take = std::function<void(std::span<const int64_t> ids)>;
  /// Passes ids to `take` in chunks: large texts need not have all ids in memory.
  virtual void encode(std::string_view text, EncodeOptions, const Take& take) const = 0;
  /// Passes the ids of documents in order, each with end_of_text() if any.
  virtual void encode_documents(std::span<const std::string_view> documents, EncodeOptions, const Take& take) const;
  /// Special token that separates documents, or -1: none.
  virtual int64_t end_of_text() const { return -1; }
  /// Special tokens in a text, in order.
  virtual std::vector<SpecialSpan> specials(std::string_view) const { return {}; }
  /// First spelling of a special token in a text, or "".
  std::string special_in(std::string_view text) const;
  /// Drops characters that encode() refuses. Default: none, counting bytes. An Error if nothing remains.
  virtual KnownText known(std::string_view text) const;
  /// An Error for an id outside the vocabulary.
  std::string decode(std::span<const int64_t> ids) const;
  /// Next id's text, maybe of partial characters. `begins`: no earlier text; text clears it.
  virtual std::string decode_next(int64_t id, bool& begins) const = 0;
  /// Number of ids.
  virtual int64_t vocab_size() const = 0;
  /// A JSON object whose "type" names the tokenizer, for from_json().
  virtual std::string to_json() const = 0;
  /// Reads to_json(). An Error for any other text.
  static std::unique_ptr<Tokenizer> from_json(std::string_view json);

 protected:
  /// An Error unless the id is in the vocabulary.
  void check_id(int64_t id, std::optional<size_t> position = {}) const;
};

/// Decodes ids one by one into whole characters.
class TextStream {
 public:
  /// `begins`: starts a text, not after a prompt.
  explicit TextStream(const Tokenizer& tokenizer, bool begins = false) : tokenizer_(&tokenizer), begins_(begins) {}
  /// Characters that the id completes; keeps unfinished bytes.
  std::string add(int64_t id);
  /// Kept bytes.
  std::string end();

 private:
  const Tokenizer* tokenizer_;
  bool begins_;
  std::string kept_;
};

/// Ends a streamed text, in any chunks, at the first complete stop string (the longest of several). Holds back text
/// that may start one.
class StopStrings {
 public:
  /// An Error for an empty stop.
  explicit StopStrings(std::vector<std::string> stops);
  /// Returns text outside of stops; none after a stop.
  std::string add(std::string_view pre_token);
  /// Held text, at the end.
  std::string end();
  /// Whether a stop has ended the text.
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // longest suffix that begins a stop
  bool found_ = false;
};

/// A tokenizer.json for Hugging Face's `tokenizers` and BpeTokenizer, which lacks CharTokenizer.
std::string tokenizer_json(const Tokenizer&);
namespace detail {
std::unique_ptr<Tokenizer> bpe_tokenizer(std::string_view tokenizer_json);  // bpe.h
// Nesting of a tokenizer.json: a post_processor nests seven deep.
inline constexpr size_t kTokenizerDepth = 16;
}  // namespace detail

/// Bytes as tokens: 256 ids. The last decoded character may be incomplete.
class ByteTokenizer final : public Tokenizer {
 public:
  using Tokenizer::encode;
  void encode(std::string_view text, EncodeOptions, const Take& take) const override;
  std::string decode_next(int64_t id, bool& begins) const override;
  int64_t vocab_size() const override { return 256; }
  std::string to_json() const override;
};

/// Unicode code points as tokens, ids in their order.
class CharTokenizer final : public Tokenizer {
 public:
  /// Characters of a text. An Error if empty or not UTF-8, with the offset.
  static CharTokenizer from_text(std::string_view text);

  using Tokenizer::encode;
  /// An Error names a character unknown to from_text(), and its offset.
  void encode(std::string_view text, EncodeOptions, const Take& take) const override;
  KnownText known(std::string_view text) const override;
  std::string decode_next(int64_t id, bool& begins) const override;
  int64_t vocab_size() const override { return int64_t(characters_.size()); }
  std::string to_json() const override;

 private:
  friend class Tokenizer;
  explicit CharTokenizer(std::vector<char32_t> sorted) : characters_(std::move(sorted)) {}
  int64_t id_of(char32_t code) const;  // -1: unknown
  std::vector<char32_t> characters_;
};

}  // namespace tg
