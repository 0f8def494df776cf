/// @file
/// Patterns that split a text into pre-tokens. Unicode classes come from tests/data/make_unicode.py, not from a system
/// library.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tg {
namespace detail {
struct PatternProgram;
}

/// A regular expression over UTF-8. Syntax: `|`, `( )`, `(?: )`, `(?i: )` (ASCII), `(?= )`, `(?! )`, `[...]`,
/// `[^...]`, ranges, `\p{X}`, `\P{X}`, `\s \S \d \r \n \t`, escaped punctuation, `.`, greedy `? * + {n} {n,m}`,
/// possessive `?+ *+ ++`. The first matching alternative wins. Invalid bytes match nothing, not even `.` or `[^...]`.
class TextPattern {
 public:
  /// An Error for other syntax (with its offset), a pattern that can match nothing, or more than 62 classes of
  /// characters.
  explicit TextPattern(std::string_view pattern);
  const std::string& text() const { return text_; }  ///< the pattern

  /// Takes bytes [begin, end) of a text and whether they match.
  using Take = std::function<void(size_t begin, size_t end, bool matched)>;
  /// Passes on matches and the text between them, in order. An Error after 10^6 + 64 n steps for n bytes: hostile
  /// patterns need more.
  void split(std::string_view text, const Take& take) const;
  /// The first offset from `from` on where a split does not change the pre-tokens, or the size of the text.
  size_t cut_from(std::string_view text, size_t from) const;

 private:
  std::string text_;
  std::shared_ptr<const detail::PatternProgram> program_;
};

}  // namespace tg
