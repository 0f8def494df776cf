// Before merges: special tokens, normalisation, pre-tokens.
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

// Limit of bytes made of a text, against hostile files. check_bytes() throws above.
constexpr size_t most_bytes(size_t text) { return text * 16 + 4096; }
void check_bytes(size_t bytes, size_t most);

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

struct Split {
  enum class Matches { alone, removed, with_previous, with_next };
  std::variant<std::string, Regex> at{};
  Matches matches = Matches::alone;
  bool invert = false;  // swaps matches with the rest
};
struct ByteLevel {
  bool prefix_space = false;  // prefix for pre-tokens without leading space
  std::optional<Split> split{};
};
struct Metaspace {
  std::string mark{};  // replaces spaces
  enum class Prepend { never, first, always } prepend = Prepend::never;
  std::optional<Split> split{};
};
using Cut = std::variant<ByteLevel, Split, Metaspace>;
// A pattern that only splits around matches, else null.
const Regex* plain_pattern(const Cut&);
using TakePreTokens = std::function<void(std::span<const std::string_view> pre_tokens)>;
// Calls `take` with batches of pre-tokens. `begins`: starts a document.
void cut(const std::vector<Cut>&, std::string_view text, bool begins, const TakePreTokens&);
// The first offset after `from` whose split keeps pre-tokens, or the size.
size_t part_end(const std::vector<Cut>&, std::string_view text, size_t from);

// A token found in the text.
struct AddedToken {
  std::string content{};
  int32_t id = 0;
  bool special = false, left_strip = false, right_strip = false, single_word = false, normalized = false;
};
// Finds added tokens: leftmost, then longest.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken>);
  // Parts of a text; plain text has null. Special tokens are plain unless parse_special.
  using Take = std::function<void(size_t begin, size_t end, const AddedToken* token)>;
  void find(std::string_view text, bool parse_special, const Take&) const;

 private:
  const AddedToken* at(std::string_view text) const;  // longest token at the front of the text
  struct Group {                                      // tokens with one first byte
    std::string prefix{};                             // common prefix
    uint32_t begin = 0, end = 0;                      // range of tokens_
  };
  std::vector<AddedToken> tokens_;  // sorted by content
  // Longest proper prefix token of each, or -1.
  std::vector<int32_t> shorter_;
  std::array<Group, 256> by_first_byte_;
  std::array<bool, 256> begins_one_{};
};

}  // namespace tg::detail
