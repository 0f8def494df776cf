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
  std::string text;        ///< without unknown characters
  int64_t characters = 0;  ///< of the whole text
  int64_t skipped = 0;     ///< unknown ones
  std::string first;       ///< first distinct unknown ones: "'#' U+0023, U+000D"
};

/// Tokenizers of bytes and characters have no special tokens.
struct EncodeOptions {
  bool parse_special = false;  ///< special tokens in the text are tokens, not text
  bool add_special = false;    ///< adds the model's tokens before and after a text
  std::string_view dropped{};  ///< left out of the text between added tokens
};

/// A special token in a text: bytes [at, end) spell it, and white space from `begin` on belongs to it.
struct SpecialSpan {
  size_t begin, at, end;
};

/// The interface of tokenizers.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// The ids of a text, in [0, vocab_size()). decode(encode(text)) is the text.
  std::vector<int64_t> encode(std::string_view text, EncodeOptions = {}) const;
  /// Takes the next ids of a text.
  using Take = std::function<void(std::span<const int64_t> ids)>;
  /// Passes ids to `take` in chunks, so that a large text never needs all its 64-bit ids in memory.
  virtual void encode(std::string_view text, EncodeOptions, const Take& take) const = 0;
  /// Passes on the ids of documents, one after the other. Each ends by end_of_text() if there is one.
  virtual void encode_documents(std::span<const std::string_view> documents, EncodeOptions, const Take& take) const;
  /// The special token that separates documents, or -1: none.
  virtual int64_t end_of_text() const { return -1; }
  /// The special tokens in a text, in order.
  virtual std::vector<SpecialSpan> specials(std::string_view) const { return {}; }
  /// The first spelling of a special token in a text, or "".
  std::string special_in(std::string_view text) const;
  /// Drops characters that encode() refuses. By default it refuses none, and bytes count as characters. An Error if
  /// none is left.
  virtual KnownText known(std::string_view text) const;
  /// An Error for an id outside the vocabulary.
  std::string decode(std::span<const int64_t> ids) const;
  /// The text of the next id, which may end inside a character. `begins`: no earlier id had text. An id with text
  /// clears it.
  virtual std::string decode_next(int64_t id, bool& begins) const = 0;
  /// The number of ids.
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
  /// `begins`: the ids start a text, not follow a prompt.
  explicit TextStream(const Tokenizer& tokenizer, bool begins = false) : tokenizer_(&tokenizer), begins_(begins) {}
  /// The characters that the next id completes. Keeps unfinished bytes.
  std::string add(int64_t id);
  /// The kept bytes.
  std::string end();

 private:
  const Tokenizer* tokenizer_;
  bool begins_;
  std::string kept_;
};

/// Ends a streamed text at the first complete stop string, or the longest of several, however it is chunked. Holds back
/// text that may begin a stop.
class StopStrings {
 public:
  /// An Error for an empty stop. Stops are bytes: those of whole characters do not split one.
  explicit StopStrings(std::vector<std::string> stops);
  /// The text that cannot belong to a stop. Nothing follows a stop.
  std::string add(std::string_view pre_token);
  /// The held text, at the end.
  std::string end();
  /// Whether a stop has ended the text.
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // longest suffix that begins a stop
  bool found_ = false;
};

/// A tokenizer.json for Hugging Face's `tokenizers` and BpeTokenizer, which cannot read that of characters.
std::string tokenizer_json(const Tokenizer&);

/// Each byte is a token: any data, 256 ids. A decoded character may be incomplete at the end.
class ByteTokenizer final : public Tokenizer {
 public:
  using Tokenizer::encode;
  void encode(std::string_view text, EncodeOptions, const Take& take) const override;
  std::string decode_next(int64_t id, bool& begins) const override;
  int64_t vocab_size() const override { return 256; }
  std::string to_json() const override;
};

/// Each Unicode code point is a token. Ids are in order of code points.
class CharTokenizer final : public Tokenizer {
 public:
  /// The characters of a text. An Error if it is empty or not UTF-8, with the offset of the first wrong byte.
  static CharTokenizer from_text(std::string_view text);

  using Tokenizer::encode;
  /// Passes ids to `take`. An Error names a character that from_text() has not seen, and its offset.
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
