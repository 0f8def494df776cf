/// @file
/// Tokenizers: text to token ids and back, by bytes, by characters, or by the pairs of bytes of published models
/// (bpe.h). A model keeps its tokenizer as JSON, so that generation needs no other file. There are no tensors here:
/// dataset.h makes batches of ids.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// The part of a text that a tokenizer can encode.
struct KnownText {
  std::string text;        ///< without the characters that the tokenizer does not know
  int64_t characters = 0;  ///< of the whole text
  int64_t skipped = 0;     ///< of these, the ones that are not in `text`
  std::string first;       ///< the first few distinct ones of them, in order: "'#' U+0023, U+000D"
};

/// How a text is encoded. Tokenizers of bytes and characters have no special tokens.
struct EncodeOptions {
  bool parse_special = false;  ///< special tokens in the text are themselves; else they are text as any other
  bool add_special = false;    ///< the special tokens that models expect before and after a text are added
};

/// The interface of tokenizers.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// The ids of a text, in [0, vocab_size()). decode(encode(text)) is the text itself.
  std::vector<int64_t> encode(std::string_view text, EncodeOptions = {}) const;
  /// Takes the next ids of a text.
  using Take = std::function<void(std::span<const int64_t> ids)>;
  /// Passes the ids of a text to `take` in pieces, in order, so that a large text is not held as 64-bit ids.
  virtual void encode(std::string_view text, const Take& take) const = 0;
  /// The same, with options. A tokenizer without special tokens has nothing else to override.
  virtual void encode(std::string_view text, EncodeOptions, const Take& take) const { encode(text, take); }
  /// A text without the characters that encode() refuses; by default it refuses none, and each byte counts as a
  /// character. An Error if the text has characters and the tokenizer knows none of them.
  virtual KnownText known(std::string_view text) const;
  /// The text of ids; an Error for an id outside of the vocabulary.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// The text of one id among others; may end inside of a character. `begins`: no id before it had text; it is cleared
  /// by an id that has.
  virtual std::string decode_next(int64_t id, bool& begins) const;
  /// The number of ids.
  virtual int64_t vocab_size() const = 0;
  /// One JSON object whose "type" names the tokenizer. from_json(to_json()) encodes and decodes as this one does.
  virtual std::string to_json() const = 0;
  /// The tokenizer of a text that to_json() wrote; an Error for any other text.
  static std::unique_ptr<Tokenizer> from_json(std::string_view json);
};

/// The text of ids that come one by one, in whole characters.
class TextStream {
 public:
  /// `begins`: the ids are those of a whole text, and not what follows a prompt.
  explicit TextStream(const Tokenizer& tokenizer, bool begins = false) : tokenizer_(&tokenizer), begins_(begins) {}
  /// The characters that the next id completes. Bytes of an unfinished character are kept.
  std::string add(int64_t id);
  /// The bytes that are kept.
  std::string end();

 private:
  const Tokenizer* tokenizer_;
  bool begins_;
  std::string kept_;
};

/// Ends a text that comes in pieces, such as those of a TextStream, at a stop: one of some strings. What may begin a
/// stop is held back. The stop that is complete first ends the text, of several the longest, however the text is cut.
class StopStrings {
 public:
  /// An Error if a stop is empty. Stops are bytes: those of whole characters do not cut one.
  explicit StopStrings(std::vector<std::string> stops);
  /// The text before any stop that the next piece makes certain. Nothing comes after a stop.
  std::string add(std::string_view piece);
  /// What is held back; the text has no more pieces.
  std::string end();
  /// A stop has ended the text.
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // the longest end of the text that begins a stop
  bool found_ = false;
};

/// The tokenizer.json of a tokenizer: what Hugging Face's `tokenizers` and BpeTokenizer read. That of characters is
/// read by the former only.
std::string tokenizer_json(const Tokenizer&);

/// Each byte is a token: any data, 256 ids, nothing to learn. The end of the ids may cut a decoded character.
class ByteTokenizer final : public Tokenizer {
 public:
  using Tokenizer::encode;
  void encode(std::string_view text, const Take& take) const override;
  std::string decode(std::span<const int64_t> ids) const override;
  int64_t vocab_size() const override { return 256; }
  std::string to_json() const override;
};

/// Each Unicode code point of a text is a token. Ids follow the order of the code points.
class CharTokenizer final : public Tokenizer {
 public:
  /// The tokenizer of the characters of a text. An Error if it is empty or not UTF-8; it names the offset of the first
  /// wrong byte.
  static CharTokenizer from_text(std::string_view text);

  /// An Error for a character that from_text() has not seen; it names the character and its offset.
  using Tokenizer::encode;
  /// Passes the ids of a text to `take`. An Error for a character that from_text() has not seen; it names the character
  /// and its offset.
  void encode(std::string_view text, const Take& take) const override;
  KnownText known(std::string_view text) const override;
  std::string decode(std::span<const int64_t> ids) const override;
  int64_t vocab_size() const override { return int64_t(characters_.size()); }
  std::string to_json() const override;

 private:
  friend class Tokenizer;
  explicit CharTokenizer(std::vector<char32_t> sorted) : characters_(std::move(sorted)) {}
  int64_t id_of(char32_t code) const;  // -1: unknown
  std::vector<char32_t> characters_;
};

}  // namespace tg
