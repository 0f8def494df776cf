/// @file
/// Patterns that cut a text into pieces, as tokenizers do before they join bytes to tokens. The classes are those of
/// the table of tests/data/make_unicode.py, so that pieces do not depend on a library of the system. tokenizer.h and
/// bpe.h use it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tg {

/// A regular expression over characters of UTF-8. It knows `|`, `( )`, `(?: )`, `(?i: )` (of ASCII), `(?= )`, `(?! )`,
/// `[...]`, `[^...]`, ranges, `\p{X}`, `\P{X}`, `\s \S \d \r \n \t`, escaped punctuation, `.`, the greedy `? * + {n}
/// {n,m}` and the possessive `?+ *+ ++`. The first alternative that matches wins. A byte that is no UTF-8 is a
/// character of no class: nothing matches it, `.` and `[^...]` neither.
class TextPattern {
 public:
  /// An Error that names the offset for any other syntax; an Error for a pattern that can match nothing, or that tells
  /// more than 62 kinds of characters apart.
  explicit TextPattern(std::string_view pattern);

  /// Takes bytes [begin, end) of a text and whether the pattern matched them.
  using Take = std::function<void(size_t begin, size_t end, bool matched)>;
  /// Passes on all matches, and what is between them, in order. An Error when the search takes more steps than
  /// 10^6 + 64 for each byte, as hostile patterns need.
  void split(std::string_view text, const Take& take) const;
  /// The first offset from `from` on where a text can be cut: the pieces of both parts are those of the whole. The
  /// size of the text if there is none.
  size_t cut_from(std::string_view text, size_t from) const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
};

}  // namespace tg
