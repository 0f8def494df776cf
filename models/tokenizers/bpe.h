/// @file
/// BPE tokenizers of published models: tokenizer.json, vocab.json with merges.txt, or tiktoken ranks.
#pragma once
#include <tapegrad/models/tokenizers/tokenizer.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tg {
class Json;
struct BpeTraining;
namespace detail {
struct BpeParts;
}

/// Merges adjacent tokens by rank. Gaps of ids decode to nothing. Byte-level tokenizers decode exactly, any bytes;
/// others may change white space.
class BpeTokenizer final : public Tokenizer {
 public:
  /// Reads a tokenizer.json, `source` in messages. An Error names place and cause.
  static BpeTokenizer from_json(std::string_view json, const std::string& source);
  /// Reads GPT-2's files: a JSON object from token to id, and a merge per line. An Error names the line.
  static BpeTokenizer from_vocab(std::string_view vocab_json, std::string_view merges, const std::string& source);
  /// Reads tiktoken ranks: a base64 token and its rank per line. `pattern` is "gpt2", "llama3" or "qwen2".
  static BpeTokenizer from_ranks(std::string_view ranks, std::string_view pattern, const std::string& source);

  /// Encodes large texts on num_threads() threads, with equal ids; calls `take` on the calling thread.
  using Tokenizer::encode;
  void encode(std::string_view text, EncodeOptions, const Take& take) const override;
  void encode_documents(std::span<const std::string_view> documents, EncodeOptions, const Take& take) const override;
  /// Special token `<|endoftext|>`, else `<|end_of_text|>`, else `</s>`.
  int64_t end_of_text() const override;
  std::vector<SpecialSpan> specials(std::string_view) const override;
  std::string decode_next(int64_t id, bool& begins) const override;
  int64_t vocab_size() const override;
  /// 1 + the largest id that is not an added token; models may lack those (padding).
  int64_t plain_vocab_size() const;
  /// A tokenizer.json.
  std::string to_json() const override;
  /// Id of a token as spelled in files, or -1.
  int64_t id_of(std::string_view token) const;

 private:
  explicit BpeTokenizer(std::shared_ptr<const detail::BpeParts> parts) : parts_(std::move(parts)) {}
  friend BpeTokenizer train_bpe(std::span<const std::string> paths, const BpeTraining&);
  friend BpeTokenizer read_tokenizer(const std::string& path, std::string_view pattern);
  // `parsed`'s text may be "".
  static BpeTokenizer from_parsed(const Json& parsed, std::string_view json, const std::string& source);
  std::shared_ptr<const detail::BpeParts> parts_;
};

/// Reads a tokenizer.json, a .tiktoken file of ranks, a GGUF file, or a folder with tokenizer.json or with vocab.json
/// and merges.txt. The folder's tokenizer_config.json, added_tokens.json and special_tokens_map.json are followed or
/// refused by name (models/tokenizers/tokenizers.md). `pattern`: for ranks. An Error names the path.
BpeTokenizer read_tokenizer(const std::string& path, std::string_view pattern = "");

}  // namespace tg
