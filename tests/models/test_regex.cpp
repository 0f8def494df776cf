// models/tokenizers/regex.h: segments, Unicode classes, hostile patterns and texts, messages.
#include "support/files.h"

#include <tapegrad/core/rng.h>
#include <tapegrad/models/tokenizers/bpe_parts.h>

#include <vector>

namespace {
using namespace tg;
using detail::Regex, detail::kGpt2Pattern, detail::kLlama3Pattern;
using Pieces = std::vector<std::string>;

// Matches, and what is between them in [].
Pieces pieces(const Regex& p, std::string_view text) {
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
Pieces pieces(std::string_view p, std::string_view text) { return pieces(Regex(p), text); }
std::string refused(std::string_view p) {
  return error_of(Error::Kind::value, [&] { Regex{p}; });
}

}  // namespace

TEST_CASE("regex: pieces of two families of models") {
  CHECK(pieces(kGpt2Pattern, "I'm  here,he'LL \n\n12345") ==
        Pieces{"I", "'m", " ", " here", ",", "he", "'", "LL", " \n", "\n", "12345"});
  CHECK(pieces(kLlama3Pattern, "I'm  here,he'LL \n\n12345") ==
        Pieces{"I", "'m", " ", " here", ",he", "'LL", " \n\n", "123", "45"});
  // U+017F folds to s, U+212A to k; both are letters.
  CHECK(pieces("(?i:'s)|.", "'S'\u017fx") == Pieces{"'S", "'\u017f", "x"});
  CHECK(pieces("(?i:k)", "kK\u212ax") == Pieces{"k", "K", "\u212a", "[x]"});
  CHECK(pieces(kGpt2Pattern, "").empty());
}

TEST_CASE("regex: classes of Unicode") {
  CHECK(pieces(R"(\d)", "\u0663\u00bd") == Pieces{"\u0663", "[\u00bd]"});
  CHECK(pieces(R"(\p{N}+)", "\u0663\u00bd\u2167") == Pieces{"\u0663\u00bd\u2167"});
  CHECK(pieces(R"(\p{M})", "e\u0301") == Pieces{"[e]", "\u0301"});
  CHECK(pieces(R"([\p{S}\p{P}]+)", "a+!\u20ac") == Pieces{"[a]", "+!\u20ac"});
  CHECK(pieces(R"(\p{Han}+)", "a\u4e2d\u56fd") == Pieces{"[a]", "\u4e2d\u56fd"});
  CHECK(pieces(R"(\p{Han}+)", "\u3001\u30fc") == Pieces{"[\u3001\u30fc]"});  // script extensions
  // White_Space has U+0085, U+00A0 and U+3000, but not U+180E, which was of it before Unicode 6.3.
  CHECK(pieces(R"(\s+)", " \u0085\u00a0\u3000\u180e") == Pieces{" \u0085\u00a0\u3000", "[\u180e]"});
  CHECK(pieces(R"([^\S\n]+)", " \u180e\n\t") == Pieces{" ", "[\u180e\n]", "\t"});
  CHECK(pieces(R"(\P{L}+|\p{Lu}\p{Ll}*)", "Abc1Z") == Pieces{"Abc", "1", "Z"});
  CHECK(pieces(".+", "a\rb\nc") == Pieces{"a\rb", "[\n]", "c"});
}

TEST_CASE("regex: repetitions, looks ahead and choices") {
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

TEST_CASE("regex: bytes that are no UTF-8 match nothing, and keep their places") {
  const Regex any(R"([\s\S]|.|[^a]|\P{L})");
  CHECK(pieces(any, "\u00e9\xff\xc3(") == Pieces{"\u00e9", "[\xff\xc3]", "("});
  CHECK(pieces(kGpt2Pattern, " a\xff b  \xff") == Pieces{" a", "[\xff]", " b", "  ", "[\xff]"});
}

TEST_CASE("regex: hostile texts take few steps, hostile patterns are stopped") {
  const std::string spaces(1'000'000, ' '), letters(1'000'000, 'a');
  for (const std::string_view p : {kGpt2Pattern, kLlama3Pattern}) {
    CHECK(pieces(p, letters + "1").size() == 2);
    CHECK(pieces(p, spaces + "x").size() == 2);
    CHECK(pieces(p, spaces + "\n").size() == 1);
  }
  for (const char* p : {"(?:a+)+b", "(?:a|aa)+b", "a*b|a", "[\\s\\S]*b|a", "a(?=a*b)|a", "(?:a?){30}b"})
    CHECK_SAYS_OF(value, pieces(p, letters), "[pattern] splitting the text takes too many steps.");
  CHECK(pieces("(?:\\p{L}\\p{M}*)+", letters + "1").size() == 2);
}

TEST_CASE("regex: a text can be cut where letters or digits end, and its pieces stay") {
  const std::string_view parts[] = {"a",   "B",  "'s", "'",  " ",      "  ",     "\n",         "\r\n", "7",
                                    "123", "!",  ".",  "é",  "\u0301", "\u4e2d", "\U0001F600", "\xff", "\xe4\xb8",
                                    "x",   "xy", "y",  "\t", "\u00a0", "the ",   "Ab",         "#",    "\u0663"};
  Rng rng{.seed = 3};
  for (const std::string_view p : {kGpt2Pattern, kLlama3Pattern, detail::kQwen2Pattern}) {
    const Regex regex(p);
    std::vector<detail::Cut> cuts{detail::Split{Regex(rng.below(2) ? detail::kDigitPattern : detail::kDigitsPattern)},
                                  detail::Split{regex}};
    size_t inside = 0;
    for (int i = 0; i < 1000; ++i) {
      std::string text;
      for (int n = 0; n < 1 + i % 30; ++n) text += parts[rng.below(std::size(parts))];
      const size_t from = rng.below(text.size()), at = detail::part_end(cuts, text, from);
      CAPTURE_ALL(p, text, at);
      REQUIRE((at > from && at <= text.size()));
      Pieces both = pieces(regex, text.substr(0, at));
      for (const std::string& piece : pieces(regex, text.substr(at))) both.push_back(piece);
      CHECK(both == pieces(regex, text));
      inside += at < text.size();
    }
    CHECK(inside > 300);
    cuts[0] = detail::Split{Regex("x+")};  // a pattern without known seams
    CHECK(detail::part_end(cuts, "a b c", 1) == 5);
  }
}

TEST_CASE("regex: pieces one by one are the pieces of the whole text") {
  Rng rng{.seed = 4};
  for (const std::string_view p : {kGpt2Pattern, kLlama3Pattern, std::string_view("a{3}|b(?=b)|\\p{L}{9,}")}) {
    const Regex regex(p);
    std::string text;
    for (int i = 0; i < 3000; ++i) text.append(1 + rng.below(i % 50 ? 6 : 700), " ab1.\n\xff"[rng.below(7)]);
    Pieces one_by_one;
    for (size_t at = 0, end; at < text.size(); at += end) {
      const auto take = [&](size_t from, size_t to, bool matched) {
        one_by_one.push_back((matched ? "" : "[") + text.substr(at + from, to - from) + (matched ? "" : "]"));
      };
      end = regex.split(std::string_view(text).substr(at), take, 1);
    }
    CHECK(one_by_one == pieces(regex, text));
  }
}

TEST_CASE("regex: whole texts, as Python matches them") {
  const auto whole = [](std::string_view p, std::string_view text) {
    return Regex(p, Regex::Use::whole).matches_whole(text);
  };
  for (const char* p : {"a.*?b", "^a.b$", "a|a.b", "(?:a|ab)(?:.b|b)", "^(?:a.b)$|x", ".{1,3}?", "a??.b"})
    CHECK(whole(p, "axb"));
  CHECK(whole("", ""));
  for (const auto& [p, text] :
       {std::pair{"a", "ab"}, {"b", "ab"}, {"a$", "a\n"}, {"a", "a\n"}, {".", "\xff"}, {".", ""}})
    CHECK(!whole(p, text));
  CHECK_SAYS_OF(value, whole("(?:a|aa)+b", std::string(60, 'a') + "bc"), "takes too many steps");
}

TEST_CASE("regex: other syntax is refused with its offset") {
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
      {"a{,2}", "a count that is no number at byte 2"},
      {"a{3,2}", "numbers out of order in {} quantifier at byte"},
      {"a{2", "a count without its '}' at byte 3"},
      {"*a", "a '*' that repeats nothing"},
      {"a(b", "missing closing parenthesis at byte 3"},
      {"ab)", "a ')' without its '(' at byte 2"},
      {"\\s[ab", "missing terminating ] for character class at byte 5"},
      {"a(*ACCEPT)", "a '*' that repeats nothing"},
      {"a}", "a '}'"},
      {"[]a]", "an empty [] at byte 0"},
      {"[a[b]]", "'[' inside of [] at byte 2"},
      {"[a&&b]", "'&&' inside of [] at byte 2"},
      {"[z-a]", "range out of order in character class at byte 3"},
      {R"([\s-a])", "invalid range in character class"},
      {R"([a-\s])", "invalid range in character class"},
      {R"(\p{Foo})", "the unknown class 'Foo' at byte 1"},
      {R"(\pL)", "a class without its name in {} at byte 1"},
      {R"(\w)", "an unknown escape at byte 1"},
      {R"((?i:\p{L}))", "a class inside of (?i: at byte 5"},
      {"(?i:\u00e9)", "a character beyond ASCII inside of (?i: at byte 4"},
      {"(?i:ass)", "two letters inside of (?i: that are one character in another case, at byte 6"},
      {"(?i:[sx](?:a|t))", "two letters inside"},
      {"(?i:(?:s|x)[Sa])", "two letters inside"},
      {"a\xff", "a byte that is no UTF-8 at byte 1"},
      {"a\\", "a backslash at the end at byte 2"}};
  for (const auto& [p, part] : wrong) CHECK_HAS(refused(p), part);
  for (const char* p : {"", "a*", "a|", "(?=a)", "a?b{0,2}"}) CHECK_HAS(refused(p), "can match nothing");
  CHECK_HAS(refused(std::string(600, '(') + "a" + std::string(600, ')')), "parentheses are too deeply nested");
  CHECK_HAS(refused(std::string(400'000, 'a')), "regular expression is too large");
  CHECK_HAS(refused("(?:(?:(?:ab){1000}){1000}){1000}"), "regular expression is too large");
}
