// models/data/pattern.h: segments, Unicode classes, hostile patterns and texts, messages.
#include "support/files.h"

#include <tapegrad/core/check.h>
#include <tapegrad/core/rng.h>
#include <tapegrad/models/data/pattern.h>

#include <vector>

namespace {
using namespace tg;
using Pieces = std::vector<std::string>;

// Matches, and what is between them in [].
Pieces pieces(const TextPattern& p, std::string_view text) {
  Pieces all;
  size_t at = 0;
  p.split(text, [&](size_t begin, size_t end, bool matched) {
    CHECK(begin == at);
    CHECK(end > begin);
    const std::string piece(text.substr(begin, end - begin));
    all.push_back(matched ? piece : "[" + piece + "]");
    at = end;
  });
  CHECK(at == text.size());
  return all;
}
Pieces pieces(const char* p, std::string_view text) { return pieces(TextPattern(p), text); }
std::string refused(std::string_view p) {
  return error_of(Error::Kind::value, [&] { TextPattern{p}; });
}

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                                R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}  // namespace

TEST_CASE("pattern: pieces of two families of models") {
  CHECK(pieces(kGpt2, "I'm  here,he'LL \n\n12345") ==
        Pieces{"I", "'m", " ", " here", ",", "he", "'", "LL", " \n", "\n", "12345"});
  CHECK(pieces(kLlama3, "I'm  here,he'LL \n\n12345") ==
        Pieces{"I", "'m", " ", " here", ",he", "'LL", " \n\n", "123", "45"});
  // U+017F folds to s, U+212A to k; both are letters.
  CHECK(pieces("(?i:'s)|.", "'S'\u017fx") == Pieces{"'S", "'\u017f", "x"});
  CHECK(pieces("(?i:k)", "kK\u212ax") == Pieces{"k", "K", "\u212a", "[x]"});
  CHECK(pieces(kGpt2, "").empty());
}

TEST_CASE("pattern: classes of Unicode 16") {
  // A letter of extension I of Han, one of Unicode 16 (Garay), a digit, a number that is no digit, a mark, a symbol.
  CHECK(pieces(R"(\p{L}+)", "\U0002EBF0\U00010D4A1") == Pieces{"\U0002EBF0\U00010D4A", "[1]"});
  CHECK(pieces(R"(\d)", "\u0663\u00bd") == Pieces{"\u0663", "[\u00bd]"});
  CHECK(pieces(R"(\p{N}+)", "\u0663\u00bd\u2167") == Pieces{"\u0663\u00bd\u2167"});
  CHECK(pieces(R"(\p{M})", "e\u0301") == Pieces{"[e]", "\u0301"});
  CHECK(pieces(R"([\p{S}\p{P}]+)", "a+!\u20ac") == Pieces{"[a]", "+!\u20ac"});
  CHECK(pieces(R"(\p{Han}+)", "a\u4e2d\u56fd") == Pieces{"[a]", "\u4e2d\u56fd"});
  // White_Space has U+0085, U+00A0 and U+3000, but not U+180E, which was of it before Unicode 6.3.
  CHECK(pieces(R"(\s+)", " \u0085\u00a0\u3000\u180e") == Pieces{" \u0085\u00a0\u3000", "[\u180e]"});
  CHECK(pieces(R"(\P{L}+|\p{Lu}\p{Ll}*)", "Abc1Z") == Pieces{"Abc", "1", "Z"});
  CHECK(pieces(".+", "a\rb\nc") == Pieces{"a\rb", "[\n]", "c"});
}

TEST_CASE("pattern: repetitions, looks ahead and choices") {
  CHECK(pieces("a{2}", "aaaaa") == Pieces{"aa", "aa", "[a]"});
  CHECK(pieces("a{1,3}", "aaaaa") == Pieces{"aaa", "aa"});
  CHECK(pieces("a|ab", "ab") == Pieces{"a", "[b]"});  // the first alternative, not the longest
  CHECK(pieces("a+ab", "aaab") == Pieces{"aaab"});
  CHECK(pieces("a++ab|a", "aab") == Pieces{"a", "a", "[b]"});
  CHECK(pieces("(?:a|b)*+b|c", "ababc") == Pieces{"[abab]", "c"});
  CHECK(pieces("(a|b)*b", "ababa") == Pieces{"abab", "[a]"});
  CHECK(pieces("a(?=b)", "abac") == Pieces{"a", "[bac]"});
  CHECK(pieces("a(?!b)", "abac") == Pieces{"[ab]", "a", "[c]"});
  CHECK(pieces("(?:ab?){2,3}", "abaabab") == Pieces{"abaab", "[ab]"});
  CHECK(pieces(R"([\-a-c\]]+)", "-abc]d") == Pieces{"-abc]", "[d]"});
  CHECK(pieces("[a-]+", "a-b") == Pieces{"a-", "[b]"});
}

TEST_CASE("pattern: bytes that are no UTF-8 match nothing, and keep their places") {
  const TextPattern any(R"([\s\S]|.|[^a]|\P{L})");
  CHECK(pieces(any, "\u00e9\xff\xc3(") == Pieces{"\u00e9", "[\xff\xc3]", "("});
  CHECK(pieces(kGpt2, " a\xff b  \xff") == Pieces{" a", "[\xff]", " b", "  ", "[\xff]"});
}

TEST_CASE("pattern: hostile texts take few steps, hostile patterns are stopped") {
  const std::string spaces(1'000'000, ' '), letters(1'000'000, 'a');
  for (const char* p : {kGpt2, kLlama3}) {
    CHECK(pieces(p, letters + "1").size() == 2);
    CHECK(pieces(p, spaces + "x").size() == 2);
    CHECK(pieces(p, spaces + "\n").size() == 1);
  }
  const TextPattern doubling("(?:a+)+b");
  CHECK_SAYS_OF(value, pieces(doubling, std::string(40, 'a') + "c"),
                "[pattern] splitting the text takes too many steps.");
}

TEST_CASE("pattern: a long list of characters is read as a short one") {
  std::string list = "\\p{L}";
  for (int i = 0; i < 15'000; ++i) list += i % 2 ? "0" : "\u2028";
  CHECK(pieces(TextPattern("[" + list + "]+"), "a0\u20281") == Pieces{"a0\u2028", "[1]"});
}

TEST_CASE("pattern: a text can be cut where a pattern says, and its pieces stay") {
  const std::string_view parts[] = {"a",   "B",  "'s", "'",  " ",      "  ",     "\n",         "\r\n", "7",
                                    "123", "!",  ".",  "é",  "\u0301", "\u4e2d", "\U0001F600", "\xff", "\xe4\xb8",
                                    "x",   "xy", "y",  "\t", "\u00a0", "the ",   "Ab",         "#",    "\u0663"};
  const char* const patterns[] = {kGpt2,
                                  kLlama3,
                                  "\\p{N}",
                                  "x(?=y)|y|\\s+",
                                  "x(?!y)|y|.",
                                  "(?:x+y)?\\s|x|\\p{L}{1,2}",
                                  "(?:ab)++c?|a|b|\\s+(?!\\S)|\\s",
                                  "[^x]",
                                  "x?+y|x|.(?=\\s*x)|."};
  Rng rng{.seed = 3};
  for (const char* p : patterns) {
    CAPTURE(p);
    const TextPattern pattern(p);
    size_t inside = 0;
    for (int i = 0; i < 400; ++i) {
      std::string text;
      for (int n = 0; n < 1 + i % 30; ++n) text += parts[rng.below(std::size(parts))];
      const size_t from = 1 + rng.below(text.size()), at = pattern.cut_from(text, from);
      CAPTURE_ALL(text, at);
      REQUIRE(at >= from);
      REQUIRE(at <= text.size());
      Pieces both = pieces(pattern, text.substr(0, at));
      for (const std::string& piece : pieces(pattern, text.substr(at))) both.push_back(piece);
      CHECK(both == pieces(pattern, text));
      inside += at < text.size();
    }
    CHECK(inside > 50);
  }
  // Letters are one segment, also at the end of a search window.
  const TextPattern gpt2(kGpt2);
  const std::string word(10'000, 'a');
  CHECK(gpt2.cut_from(word, 1) == word.size());
  CHECK(gpt2.cut_from(word + " b", 1) == word.size());
  CHECK(gpt2.cut_from(word + " b", word.size()) == word.size());
}

TEST_CASE("pattern: other syntax is refused with its offset") {
  const std::pair<const char*, const char*> wrong[] = {
      {"ab\\1", "an unknown escape at byte 3 of the pattern ab\\1."},
      {"a(?<n>b)", "an unknown kind of group at byte 2"},
      {"a(?<=b)c", "an unknown kind of group at byte 2"},
      {"(?i)a", "an unknown kind of group at byte 1"},
      {"^a", "at byte 0"},
      {"a$", "at byte 1"},
      {"a+?", "a second or a lazy repetition at byte 2"},
      {"a{2}{3}", "a second or a lazy repetition at byte 4"},
      {"a{2}+", "a '+' after a count, which means different things to different programs, at byte 4"},
      {"a{2,}", "a count that is none of 0 to 1000 at byte 4"},
      {"a{0}", "a count that asks for nothing at byte 1"},
      {"a{3,2}", "a count that asks for nothing at byte 1"},
      {"a{1001}", "a count that is none of 0 to 1000"},
      {"*a", "a '*' that repeats nothing"},
      {"a(b", "a '(' without its ')' at byte 1"},
      {"ab)", "a ')' without its '(' at byte 2"},
      {"[ab", "a '[' without its ']' at byte 0"},
      {"[]a]", "an empty [] at byte 0"},
      {"[a[b]]", "'[' inside of [] at byte 2"},
      {"[a&&b]", "'&&' inside of [] at byte 2"},
      {"[z-a]", "a range whose end is before its beginning at byte 1"},
      {R"([\s-a])", "a range that begins with a class"},
      {R"([a-\s])", "a range that ends with a class"},
      {R"(\p{Foo})", "the unknown class 'Foo' at byte 1"},
      {R"(\pL)", "a class without its name in {} at byte 1"},
      {R"(\w)", "an unknown escape at byte 1"},
      {"(?:a?)*b", "a repetition of what can be nothing at byte 6"},
      {"(?=a)+b", "a look ahead that is repeated at byte 5"},
      {R"((?i:\p{L}))", "a class inside of (?i: at byte 5"},
      {"(?i:\u00e9)", "a character beyond ASCII inside of (?i: at byte 4"},
      {"(?i:ass)", "two letters inside of (?i: that are one character in another case, at byte 6"},
      {"a\xff", "a byte that is no UTF-8 at byte 1"},
      {"a\\", "a backslash at the end at byte 2"}};
  for (const auto& [p, part] : wrong) CHECK_HAS(refused(p), part);
  for (const char* p : {"", "a*", "a|", "(?=a)", "a?b{0,2}"}) CHECK_HAS(refused(p), "can match nothing");
  CHECK_HAS(refused(std::string(60, '(') + "a" + std::string(60, ')')), "a group inside of 50 others at byte 50");
  CHECK_HAS(refused(std::string(40'000, 'a')), "the pattern has 40000 bytes, and may have 32768.");
  CHECK_HAS(refused("(?:(?:(?:ab){1000}){1000}){1000}"), "has more than 20000 steps");
  std::string many;
  for (char c = '!'; c <= '~'; ++c)
    if (std::isalnum(uint8_t(c))) many += fmt::format("{}{}", many.empty() ? "" : "|", c);
  CHECK_HAS(refused(many), "more than 62 kinds of characters");
}
