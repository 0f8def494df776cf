#include <tapegrad/core/check.h>
#include <tapegrad/models/data/pattern_program.h>
#include <tapegrad/models/data/utf8.h>

#include <algorithm>
#include <charconv>

namespace tg::detail {
namespace {
using Kind = PatternNode::Kind;

// Adds both cases of ASCII letters, U+017F to s, U+212A to k.
void fold(CodeSet& set) {
  CodeSet::Ranges all = set.ranges();
  for (char32_t small = 'a'; small <= 'z'; ++small) {
    const char32_t large = small - 'a' + 'A';
    const char32_t other = small == 's' ? 0x17F : small == 'k' ? 0x212A : small;
    if (set.has(small) || set.has(large) || set.has(other))
      all.insert(all.end(), {{small, small}, {large, large}, {other, other}});
  }
  set = CodeSet(std::move(all));
}

// Whether a subtree has one of these characters.
bool mentions(const PatternNode& node, std::string_view characters) {
  if (node.kind == Kind::set) return std::ranges::any_of(characters, [&](char c) { return node.set.has(char32_t(c)); });
  return std::ranges::any_of(node.kids, [&](const PatternNode& kid) { return mentions(kid, characters); });
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) : text_(pattern) {}

  PatternNode all() {
    PatternNode root = choice();
    if (!at_end()) fail("a ')' without its '('");
    return root;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { fail_at(at_, what); }
  [[noreturn]] void fail_at(size_t offset, std::string_view what) const {
    detail::fail(Error::Kind::value,
                 fmt::format("[pattern] {} at byte {} of the pattern {}. Patterns have the syntax that "
                             "models/data/pattern.h lists. Write it in other words.",
                             what, offset, text_));
  }
  bool at_end() const { return at_ == text_.size(); }
  bool next_is(char c) const { return !at_end() && text_[at_] == c; }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  // A character or an escape. Returns whether it is a class.
  bool take_one(CodeSet& set) {
    if (take("\\")) return take_escape(set);
    if (at_end()) fail("the pattern ends where a character is needed,");
    const Utf8 c = first_of(text_.substr(at_));
    if (c.length == 0) fail("a byte that is no UTF-8");
    if (folded_ && c.code >= 0x80) fail("a character beyond ASCII inside of (?i:");
    at_ += c.length;
    set = {c.code, c.code};
    return false;
  }
  bool take_escape(CodeSet& set) {
    if (at_end()) fail("a backslash at the end");
    const size_t begin = at_;
    const char e = text_[at_++];
    const auto named = [&](std::string_view name, bool inverse) {
      const CodeSet* found = unicode_class(name);
      if (!found) fail_at(begin, fmt::format("the unknown class '{}'", name));
      if (folded_ && name != "White_Space" && name != "Nd") fail_at(begin, "a class inside of (?i:");
      set = inverse ? found->inverse() : *found;
      return true;
    };
    if (e == 's' || e == 'S') return named("White_Space", e == 'S');
    if (e == 'd') return named("Nd", false);
    if (e == 'p' || e == 'P') {
      const size_t end = text_.find('}', at_);
      if (!next_is('{') || end == std::string_view::npos) fail_at(begin, "a class without its name in {}");
      const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
      return named(name == "White_Space" ? "" : name, e == 'P');
    }
    const size_t control = std::string_view("rnt").find(e);
    const bool letter = (e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z');
    if (control == std::string_view::npos && (letter || (e >= '0' && e <= '9') || e < ' ' || e > '~'))
      fail_at(begin, "an unknown escape");
    const auto c = char32_t(control == std::string_view::npos ? e : "\r\n\t"[control]);
    set = {c, c};
    return false;
  }
  PatternNode one_of() {  // after '['
    const size_t begin = at_ - 1;
    const bool inverse = take("^");
    // Sorted once, so that long lists stay fast.
    CodeSet::Ranges ranges;
    while (!next_is(']')) {
      if (at_end()) fail_at(begin, "a '[' without its ']'");
      CodeSet set, last;
      const size_t here = at_;
      for (const std::string_view operation : {"[", "&&", "--", "~~"})
        if (text_.substr(at_).starts_with(operation)) fail(fmt::format("'{}' inside of []", operation));
      const bool is_class = take_one(set);
      if (next_is('-') && !text_.substr(at_).starts_with("-]")) {
        if (is_class) fail("a range that begins with a class");
        ++at_;
        if (take_one(last)) fail_at(here, "a range that ends with a class");
        const char32_t from = set.ranges()[0].first, to = last.ranges()[0].first;
        if (to < from) fail_at(here, "a range whose end is before its beginning");
        set = {from, to};
      }
      ranges.insert(ranges.end(), set.ranges().begin(), set.ranges().end());
    }
    ++at_;
    CodeSet all(std::move(ranges));
    if (all.ranges().empty()) fail_at(begin, "an empty []");
    if (folded_) fold(all);
    return {.set = inverse ? all.inverse() : all};
  }
  PatternNode group() {  // after '('
    const size_t begin = at_ - 1;
    PatternNode look{.kind = Kind::look, .empty = true};
    const bool before = folded_, ahead = text_.substr(at_).starts_with("?=") || text_.substr(at_).starts_with("?!");
    look.negative = ahead && text_[at_ + 1] == '!';
    if (ahead)
      at_ += 2;
    else if (take("?i:"))
      folded_ = true;
    else if (!take("?:") && next_is('?'))
      fail("an unknown kind of group");
    constexpr int kDeepest = 50;
    if (++depth_ > kDeepest) fail_at(begin, "a group inside of 50 others");
    PatternNode inner = choice();
    --depth_;
    if (!take(")")) fail_at(begin, "a '(' without its ')'");
    folded_ = before;
    if (!ahead) return inner;
    look.kids.push_back(std::move(inner));
    return look;
  }
  PatternNode atom() {
    if (take("(")) return group();
    if (take("[")) return one_of();
    if (take(".")) return {.set = CodeSet('\n', '\n').inverse()};
    if (std::string_view("?*+{}]^$").find(text_[at_]) != std::string_view::npos)
      fail(fmt::format("a '{}' that repeats nothing or has no meaning here", text_[at_]));
    CodeSet set;
    if (!take_one(set) && folded_) fold(set);
    return {.set = std::move(set)};
  }
  int count() {
    constexpr int kMost = 1000;
    int n = -1;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), n);
    if (error != std::errc() || n < 0 || n > kMost) fail("a count that is none of 0 to 1000");
    at_ = size_t(end - text_.data());
    return n;
  }
  PatternNode repeated(PatternNode inner) {
    if (at_end() || std::string_view("?*+{").find(text_[at_]) == std::string_view::npos) return inner;
    const size_t begin = at_;
    const char kind = text_[at_++];
    PatternNode node{.kind = Kind::repeat, .least = kind == '+', .most = kind == '?' ? 1 : -1};
    if (kind == '{') {
      node.least = node.most = count();
      if (take(",")) node.most = count();
      if (!take("}")) fail("a count without its '}'");
      if (node.most < node.least || node.most == 0) fail_at(begin, "a count that asks for nothing");
      // Oniguruma repeats once more; Perl and PCRE are possessive.
      if (next_is('+')) fail("a '+' after a count, which means different things to different programs,");
    } else {
      node.possessive = take("+");
    }
    if (!at_end() && std::string_view("?*+{").find(text_[at_]) != std::string_view::npos)
      fail("a second or a lazy repetition");
    if (inner.kind == Kind::look) fail_at(begin, "a look ahead that is repeated");
    if (node.most < 0 && inner.empty) fail_at(begin, "a repetition of what can be nothing");
    node.empty = node.least == 0 || inner.empty;
    node.kids.push_back(std::move(inner));
    return node;
  }
  PatternNode sequence() {
    PatternNode node{.kind = Kind::sequence, .empty = true};
    while (!at_end() && !next_is('|') && !next_is(')')) {
      const size_t begin = at_;
      PatternNode kid = repeated(atom());
      // Some programs match one character for two letters, such as U+00DF for ss.
      if (folded_ && !node.kids.empty() &&
          ((mentions(node.kids.back(), "s") && mentions(kid, "st")) ||
           (mentions(node.kids.back(), "f") && mentions(kid, "fil"))))
        fail_at(begin, "two letters inside of (?i: that are one character in another case,");
      node.empty = node.empty && kid.empty;
      node.kids.push_back(std::move(kid));
    }
    return node;
  }
  PatternNode choice() {
    PatternNode node{.kind = Kind::choice};
    do {
      node.kids.push_back(sequence());
      node.empty = node.empty || node.kids.back().empty;
    } while (take("|"));
    return node;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool folded_ = false;
  int depth_ = 0;
};

}  // namespace

PatternNode parse_pattern(std::string_view pattern) {
  constexpr size_t kLongest = 1 << 15;
  TG_CHECK(pattern.size() <= kLongest, value, "[pattern] the pattern has {} bytes, and may have {}. Make it shorter.",
           pattern.size(), kLongest);
  PatternNode root = Parser(pattern).all();
  TG_CHECK(
      !root.empty, value,
      "[pattern] the pattern {} can match nothing, and each match must have characters. Make it require a character.",
      pattern);
  return root;
}

}  // namespace tg::detail
