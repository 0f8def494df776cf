/// @file
/// Tokenizers of published models: byte pair encoding as in tokenizer.json of Hugging Face, in vocab.json with
/// merges.txt, and in rank files of tiktoken.
#pragma once
#include <tapegrad/models/data/tokenizer.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tg {
class Json;

/// A tokenizer that joins neighbours by a list of merges. Ids may have gaps; those without a token decode to nothing.
/// decode(encode(text)) is the text itself, of any bytes, when the tokenizer is byte-level; others may change white
/// space as their files say.
class BpeTokenizer final : public Tokenizer {
 public:
  /// The tokenizer of a tokenizer.json, whose path is `source` in messages. An Error names the place in it and what is
  /// unknown or wrong.
  static BpeTokenizer from_json(std::string_view json, const std::string& source);
  /// The tokenizer of GPT-2's two files: a JSON object from token to id, and a merge in each line. An Error names the
  /// line.
  static BpeTokenizer from_vocab(std::string_view vocab_json, std::string_view merges, const std::string& source);
  /// The tokenizer of ranks of tiktoken: a token in base64 and its rank in each line. `pattern` is "gpt2", "llama3" or
  /// "qwen2".
  static BpeTokenizer from_ranks(std::string_view ranks, std::string_view pattern, const std::string& source);

  /// A large text is encoded on num_threads() threads; the ids are those of one. `take` is called by the caller's.
  using Tokenizer::encode;
  void encode(std::string_view text, const Take& take) const override { encode(text, EncodeOptions(), take); }
  void encode(std::string_view text, EncodeOptions, const Take& take) const override;
  std::string decode(std::span<const int64_t> ids) const override;
  std::string decode_next(int64_t id, bool& begins) const override;
  int64_t vocab_size() const override;
  /// One more than the largest id of a token that is not an added one. A model may lack added tokens, such as one for
  /// padding.
  int64_t plain_vocab_size() const;
  /// A tokenizer.json.
  std::string to_json() const override;
  /// The id of a token as its files write it; -1: there is none.
  int64_t id_of(std::string_view token) const;

 private:
  struct Parts;
  explicit BpeTokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  friend BpeTokenizer read_tokenizer(const std::string& path, std::string_view pattern);
  // Of what `json`, a text or "", was parsed to.
  static BpeTokenizer from_parsed(const Json& parsed, std::string_view json, const std::string& source);
  std::shared_ptr<const Parts> parts_;
};

/// The tokenizer at a path: a tokenizer.json, a file of tiktoken's ranks (.tiktoken), or a folder with tokenizer.json
/// or with vocab.json and merges.txt. Of a folder, what tokenizer_config.json, added_tokens.json and
/// special_tokens_map.json say about ids is followed, or refused by name (models/README.md). `pattern` is needed for
/// ranks alone. An Error names the path.
BpeTokenizer read_tokenizer(const std::string& path, std::string_view pattern = "");

}  // namespace tg
