// Regular expressions over UTF-8, by PCRE2.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tg::detail {

// Syntax: `|`, `( )`, `(?: )`, `(?i: )` (ASCII), `(?= )`, `(?! )`, `[...]`, `[^...]`, ranges, `\p{X}`, `\P{X}` of
// general categories and Han, `\s \S \d \r \n \t`, escaped punctuation, `.`, greedy `? * + {n} {n,} {n,m}`, possessive
// `?+ *+ ++`; for whole texts also `^`, `$`, lazy quantifiers. An Error names the offset of other syntax: PCRE2,
// Oniguruma and Python read it differently. No match or lookahead has an invalid byte.
class Regex {
 public:
  // Use::split: an Error if the pattern matches "".
  enum class Use { split, whole };
  explicit Regex(std::string_view pattern, Use use = Use::split);
  const std::string& text() const { return text_; }

  // Bytes [begin, end) and whether they match.
  using Take = std::function<void(size_t begin, size_t end, bool matched)>;
  // Passes matches and text between them up to the first match that ends at or after `stop`. Returns its end, or the
  // text's size. An Error for patterns that backtrack too much.
  size_t split(std::string_view text, const Take& take, size_t stop = std::string_view::npos) const;
  bool matches_whole(std::string_view text) const;  // false for invalid UTF-8

 private:
  struct Program {
    std::shared_ptr<const void> code;
    bool is_compiled = false;  // compiled to machine code
  };
  Program compiled(const std::string& pcre, uint32_t options, const class RegexReader&) const;
  static int match(const Program&, std::string_view text, uint32_t options);
  std::string text_;
  Program one_, several_;  // one match; adjacent matches, a group each
};

}  // namespace tg::detail
