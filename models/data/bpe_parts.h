// A parsed tokenizer.json. Internal.
#pragma once
#include <tapegrad/models/data/bpe_model.h>
#include <tapegrad/models/data/text_steps.h>

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tg {
class Json;
namespace detail {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

struct BpeParts {
  BpeModel model;
  std::vector<Normalization> normalizer;
  std::vector<Cut> cuts;
  AddedTokens added, added_normalized;  // for the text, and the normalised text
  std::vector<int32_t> before, after;   // the special tokens around a text
  int32_t end_of_text = -1;             // BpeTokenizer::end_of_text()
  int64_t plain_size = 0;               // BpeTokenizer::plain_vocab_size()
  TokenIds names;                       // ids of all tokens as spelled in the file
  std::vector<std::string> texts;       // the decoded text of each id
  std::string leading;                  // removed once from the front of a decoded text
};

// An Error names `source` and the path in it.
BpeParts read_bpe(const Json&, const std::string& source);
inline constexpr size_t kTokenizerDepth = 16;  // of a tokenizer.json; a post_processor nests seven deep

// The character for each byte in byte-level vocabularies; printable bytes stay.
const std::array<char32_t, 256>& byte_characters();
// Bytes of a byte-level token, or false for other characters.
bool bytes_of(std::string_view token, std::string& to);
std::string as_characters(std::string_view bytes);
// A byte-level tokenizer.json. An empty pattern does not split.
Json byte_level_json(Json vocabulary, Json merges, std::string_view pattern, bool ignore_merges);
Json added_token(std::string_view content, const Json& id, bool special);

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)"
                                                   R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The pattern of gpt2, llama3 or qwen2. Empty for another name.
std::string_view pattern_named(std::string_view name);

}  // namespace detail
}  // namespace tg
