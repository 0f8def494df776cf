// What comes before the joins of a tokenizer: special tokens are found, the text is changed, and cut into pieces.
// Internal to models/data.
#pragma once
#include <tapegrad/models/data/pattern.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg::detail {

// Each occurrence of `from`, which is not empty, becomes `to`.
struct TextReplacement {
  std::string from, to;
  std::string of(std::string_view text, size_t most) const;  // an Error if the result has more bytes
};
// The most bytes that steps may make of a text of so many: a file of a few kB could ask for any number. check_bytes()
// is an Error if there are more.
constexpr size_t most_bytes(size_t text) { return text * 16 + 4096; }
void check_bytes(size_t bytes, size_t most);

// One step of a normalizer.
struct Normalization {
  bool compose = false;   // to NFC; else:
  std::string prepend{};  // before a text that is not empty; else:
  TextReplacement replace{};
};
std::string normalized(const std::vector<Normalization>&, std::string_view text);

// One step of a pre-tokenizer: pieces to pieces.
struct Cut {
  enum class Kind { pattern, literal, bytes, metaspace };
  enum class Matches { alone, removed, with_previous, with_next };
  Kind kind = Kind::pattern;
  std::optional<TextPattern> pattern{};  // bytes: none does not cut
  std::string literal{};                 // or the replacement of spaces
  Matches matches = Matches::alone;
  bool invert = false;        // what does not match counts as a match
  bool splits = true;         // metaspace: cuts before each replacement
  bool prefix_space = false;  // bytes: before a piece that does not begin with a space
  enum class Prepend { never, first, always } prepend = Prepend::never;  // metaspace
};
using TakePieces = std::function<void(std::span<const std::string_view> pieces)>;
// Calls `take` with batches of pre-tokens. `begins`: the text starts the document.
void cut(const std::vector<Cut>&, std::string_view text, bool begins, const TakePieces&);
// The first offset from `from` on where a text can be cut in two whose pieces are those of the whole; its size if there
// is none.
size_t part_end(const std::vector<Cut>&, std::string_view text, size_t from);

// A token that is found in the text itself.
struct AddedToken {
  std::string content{};
  int32_t id = 0;
  bool special = false, left_strip = false, right_strip = false, single_word = false, normalized = false;
};
// The added tokens of a tokenizer, to find them in texts: the leftmost, and the longest of those.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken>);
  // Passes on the parts of a text; `token` is null for what is no token. Special tokens are text unless parse_special.
  using Take = std::function<void(size_t begin, size_t end, const AddedToken* token)>;
  void find(std::string_view text, bool parse_special, const Take&) const;

 private:
  const AddedToken* at(std::string_view text) const;  // the longest at the front
  struct Group {                                      // of tokens with the same first byte
    std::string prefix{};                             // that all of them have
    uint32_t begin = 0, end = 0;                      // in tokens_
  };
  std::vector<AddedToken> tokens_;  // by content
  std::vector<int32_t> shorter_;    // of each: the longest token that it begins with; -1: none
  std::array<Group, 256> by_first_byte_;
  std::array<bool, 256> begins_one_{};
};

}  // namespace tg::detail
