// Steps before the merges: special tokens, normalisation, pre-tokens. Internal.
#pragma once
#include <tapegrad/models/tokenizers/regex.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tg::detail {

// The most bytes that steps may make of a text, since a small hostile file could ask for any number. check_bytes() is
// an Error above.
constexpr size_t most_bytes(size_t text) { return text * 16 + 4096; }
void check_bytes(size_t bytes, size_t most);

// Steps of a normalizer.
struct Nfc {};
struct Prepend {
  std::string text;
};
struct Replace {
  std::string from, to;                                      // `from` is not empty
  std::string of(std::string_view text, size_t most) const;  // an Error above `most` bytes
};
using Normalization = std::variant<Nfc, Prepend, Replace>;
std::string normalized(const std::vector<Normalization>&, std::string_view text);

// Steps of a pre-tokenizer.
struct Split {
  enum class Matches { alone, removed, with_previous, with_next };
  std::variant<std::string, Regex> at{};
  Matches matches = Matches::alone;
  bool invert = false;  // swaps matches and the rest
};
struct ByteLevel {
  bool prefix_space = false;  // before a pre-token without a leading space
  std::optional<Split> split{};
};
struct Metaspace {
  std::string mark{};  // replaces spaces
  enum class Prepend { never, first, always } prepend = Prepend::never;
  std::optional<Split> split{};
};
using Cut = std::variant<ByteLevel, Split, Metaspace>;
// The pattern of a step that only splits around its matches, else null.
const Regex* plain_pattern(const Cut&);
using TakePreTokens = std::function<void(std::span<const std::string_view> pre_tokens)>;
// Calls `take` with batches of pre-tokens. `begins`: the document starts here.
void cut(const std::vector<Cut>&, std::string_view text, bool begins, const TakePreTokens&);
// The first offset after `from` where a split does not change the pre-tokens, or the size of the text.
size_t part_end(const std::vector<Cut>&, std::string_view text, size_t from);

// A token found in the text itself.
struct AddedToken {
  std::string content{};
  int32_t id = 0;
  bool special = false, left_strip = false, right_strip = false, single_word = false, normalized = false;
};
// Finds added tokens: the leftmost, then the longest.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken>);
  // Passes on the parts of a text, with null for plain text. Special tokens are plain unless parse_special.
  using Take = std::function<void(size_t begin, size_t end, const AddedToken* token)>;
  void find(std::string_view text, bool parse_special, const Take&) const;

 private:
  const AddedToken* at(std::string_view text) const;  // the longest in front
  struct Group {                                      // tokens with the same first byte
    std::string prefix{};                             // common to all
    uint32_t begin = 0, end = 0;                      // in tokens_
  };
  std::vector<AddedToken> tokens_;  // by content
  // The longest proper prefix of each that is a token, or -1.
  std::vector<int32_t> shorter_;
  std::array<Group, 256> by_first_byte_;
  std::array<bool, 256> begins_one_{};
};

}  // namespace tg::detail
