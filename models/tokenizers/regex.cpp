#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/tokenizers/regex.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace tg::detail {
namespace {

constexpr uint32_t kTogether = 4;  // matches per call: entering PCRE2 costs as much as a word
// A thread's state.
struct RegexScratch {
  std::shared_ptr<pcre2_match_data> data{pcre2_match_data_create(1 + kTogether, nullptr), pcre2_match_data_free};
  std::shared_ptr<pcre2_match_context> context{pcre2_match_context_create(nullptr), pcre2_match_context_free};
  std::shared_ptr<pcre2_jit_stack> stack{pcre2_jit_stack_create(1 << 15, 1 << 26, nullptr), pcre2_jit_stack_free};
  RegexScratch() {
    pcre2_set_heap_limit(context.get(), 1 << 16);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};
thread_local const RegexScratch regex_scratch;
[[noreturn]] void fail_backtracking() {
  fail(Error::Kind::value,
       "[pattern] splitting the text takes too many steps. The pattern backtracks too much; make it simpler.");
}

constexpr std::string_view kClasses[] = {"L",  "M",  "N",  "P",  "S",  "Lu", "Ll",
                                         "Lt", "Lm", "Lo", "Nd", "Nl", "No", "Han"};

}  // namespace

// Writes PCRE2 syntax.
class RegexReader {
 public:
  RegexReader(std::string_view pattern, bool whole) : text_(pattern), whole_(whole) {}
  [[noreturn]] void fail_at(size_t offset, std::string_view what) const {
    detail::fail(Error::Kind::value, fmt::format("[pattern] {} at byte {} of the pattern {}. Patterns have the syntax "
                                                 "that models/tokenizers/regex.h lists. Write it in other words.",
                                                 what, offset, text_));
  }
  size_t origin(size_t offset) const { return offset < origins_.size() ? origins_[offset] : text_.size(); }
  std::string read() {
    while (at_ < text_.size()) {
      const size_t begin = at_;
      step();
      origins_.resize(to_.size(), begin);
    }
    return to_;
  }

 private:
  bool next_is(std::string_view any) const { return at_ < text_.size() && any.find(text_[at_]) != any.npos; }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    to_ += word, at_ += word.size();
    return true;
  }
  void step() {
    if (next_is("?*+{") && !in_class_) return repeat();
    const size_t begin = at_;
    after_atom_ = true;
    if (take("\\")) return escape();
    if (in_class_) {
      if (take("]")) return void(in_class_ = false);
      for (const std::string_view operation : {"[", "&&", "--", "~~"})
        if (text_.substr(at_).starts_with(operation)) fail_at(at_, fmt::format("'{}' inside of []", operation));
    } else if (next_is("()|")) {
      return group();
    } else if (take("[")) {
      take("^");
      if (next_is("]")) fail_at(begin, "an empty []");
      in_class_ = true;
      return fold('.');
    } else if (next_is("}]") || (!whole_ && next_is("^$"))) {
      fail_at(at_, fmt::format("a '{}' that repeats nothing or has no meaning here", text_[at_]));
    }
    const Utf8 c = first_of(text_.substr(at_));
    if (c.length == 0) fail_at(at_, "a byte that is no UTF-8");
    if (c.length > 1 && groups_.back().first) fail_at(at_, "a character beyond ASCII inside of (?i:");
    if (!in_class_) fold(text_[at_]);
    take(text_.substr(at_, c.length));
  }
  // Oniguruma also matches one character for two letters, such as U+00DF for ss. '.': any.
  void fold(char next) {
    const auto is = [](char c, std::string_view any) { return c == '.' || any.find(c) != any.npos; };
    const char before = std::exchange(before_, next);
    if (groups_.back().first && ((is(before, "sS") && is(next, "sStT")) || (is(before, "fF") && is(next, "fFiIlL"))))
      fail_at(at_, "two letters inside of (?i: that are one character in another case,");
  }
  void escape() {
    const size_t begin = at_;
    if (at_ == text_.size()) fail_at(at_, "a backslash at the end");
    const char e = text_[at_];
    if (next_is("sS")) {  // PCRE2's \s has U+180E
      to_ += e == 's' ? "p{White_Space}" : "P{White_Space}", ++at_;
    } else if (next_is("pP")) {
      const size_t end = text_.find('}', at_);
      if (text_.substr(at_ + 1, 1) != "{" || end == text_.npos) fail_at(begin, "a class without its name in {}");
      const std::string_view name = text_.substr(at_ + 2, end - at_ - 2);
      if (std::ranges::find(kClasses, name) == std::end(kClasses))
        fail_at(begin, fmt::format("the unknown class '{}'", name));
      if (groups_.back().first && name != "Nd") fail_at(begin, "a class inside of (?i:");
      at_ = end + 1;
      to_ += fmt::format("{}{{{}{}}}", e, name == "Han" ? "sc:" : "", name);  // \p{} means Script_Extensions without it
      if (name == "L" && e == 'p' && !in_class_) to_.replace(to_.size() - 5, 5, R"([A-Za-z\p{L}])");
    } else {
      const bool letter = (e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || (e >= '0' && e <= '9');
      if ((letter && !next_is("drnt")) || e < ' ' || e > '~') fail_at(begin, "an unknown escape");
      take(text_.substr(at_, 1));
    }
  }
  void group() {
    const size_t begin = at_;
    const bool folded = groups_.back().first;
    after_atom_ = false;
    if (take("|")) return void(before_ = groups_.back().second);
    if (take(")")) {
      if (groups_.size() == 1) fail_at(begin, "a ')' without its '('");
      groups_.pop_back();
      after_atom_ = true, before_ = '.';
      return;
    }
    take("(");
    const bool folds = take("?i:");
    if (!folds && !take("?:") && !take("?=") && !take("?!") && next_is("?")) fail_at(at_, "an unknown kind of group");
    if (folds) before_ = 0;
    groups_.emplace_back(folded || folds, before_);
  }
  void repeat() {
    const auto digits = [&] {
      const size_t from = at_;
      while (next_is("0123456789")) take(text_.substr(at_, 1));
      return at_ > from;
    };
    if (!after_atom_) fail_at(at_, fmt::format("a '{}' that repeats nothing or has no meaning here", text_[at_]));
    after_atom_ = false;
    const bool counted = next_is("{");
    take(text_.substr(at_, 1));
    if (counted) {
      if (!digits()) fail_at(at_, "a count that is no number");
      if (take(",")) digits();
      if (!take("}")) fail_at(at_, "a count without its '}'");
      // Oniguruma repeats; Perl and PCRE2 are possessive.
      if (next_is("+")) fail_at(at_, "a '+' after a count, which means different things to different programs,");
    }
    if (!take("+") && whole_) take("?");
    if (next_is("?*+{")) fail_at(at_, "a second or a lazy repetition");
  }

  std::string_view text_;
  bool whole_;
  size_t at_ = 0;
  std::string to_;
  std::vector<size_t> origins_;                   // pattern offsets of to_'s bytes
  std::vector<std::pair<bool, char>> groups_{1};  // open groups: whether each folds case; before_
  bool in_class_ = false, after_atom_ = false;
  char before_ = 0;  // character before this part
};

Regex::Regex(std::string_view pattern, Use use) : text_(pattern) {
  RegexReader reader(text_, use == Use::whole);
  const std::string p = reader.read();
  one_ = compiled(p, use == Use::whole ? PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOLLAR_ENDONLY : 0, reader);
  if (use == Use::whole) return;
  uint32_t empty = 0;
  pcre2_pattern_info(static_cast<const pcre2_code*>(one_.code.get()), PCRE2_INFO_MATCHEMPTY, &empty);
  TG_CHECK(
      !empty, value,
      "[pattern] the pattern {} can match nothing, and each match must have characters. Make it require a character.",
      pattern);
  std::string several;
  for (uint32_t k = 0; k < kTogether; ++k) several += fmt::format("{}(?<m{}>{})", k ? "(?:" : "", k, p);
  for (uint32_t k = 1; k < kTogether; ++k) several += ")?";
  several_ = compiled(several, 0, reader);
}

Regex::Program Regex::compiled(const std::string& pcre, uint32_t options, const RegexReader& reader) const {
  const std::shared_ptr<pcre2_compile_context> c(pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(c.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  const std::shared_ptr<pcre2_code> code(
      pcre2_compile(PCRE2_SPTR(pcre.data()), pcre.size(), options | PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE,
                    &error, &offset, c.get()),
      pcre2_code_free);
  if (!code) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    reader.fail_at(reader.origin(offset), reinterpret_cast<const char*>(message));
  }
  return {code, pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0};
}

// Groups plus 1, or PCRE2's code.
int Regex::match(const Program& p, std::string_view text, uint32_t options) {
  const RegexScratch& s = regex_scratch;
  pcre2_set_match_limit(s.context.get(), uint32_t(std::min<size_t>(1'000'000 + 64 * text.size(), UINT32_MAX)));
  const auto f = p.is_compiled ? pcre2_jit_match : pcre2_match;
  const int result = f(static_cast<const pcre2_code*>(p.code.get()), PCRE2_SPTR(text.data()), text.size(), 0,
                       options | PCRE2_NO_UTF_CHECK, s.data.get(), s.context.get());
  if (result < PCRE2_ERROR_PARTIAL) fail_backtracking();
  return result;
}

bool Regex::matches_whole(std::string_view text) const { return invalid_bytes(text) == 0 && match(one_, text, 0) >= 0; }

size_t Regex::split(std::string_view text, const Take& take, size_t stop) const {
  constexpr size_t kWindow = 256;  // a match at the end is retried alone, then in a larger window
  size_t begin = 0, at = 0, window = kWindow, valid = 0, budget = 1'000'000 + 64 * text.size();
  bool ends = false;  // the text or its valid part ends at `valid`
  bool alone = false;
  const size_t* const found = pcre2_get_ovector_pointer(regex_scratch.data.get());
  const auto pass = [&](size_t end, bool matched) {
    if (end > begin) take(begin, end, matched);
    begin = end;
  };
  while (at < text.size() && begin < stop) {
    if (!ends && valid < at + window) {
      const size_t wanted = std::min(text.size(), at + 4 * window);
      valid = valid_end(text, valid, wanted);
      ends = valid < wanted || valid == text.size();
    }
    if (at == valid) {  // invalid UTF-8
      at = ++valid, ends = false;
      continue;
    }
    size_t end = std::min(valid, at + window);
    while (end < valid && (uint8_t(text[end]) & 0xC0u) == 0x80u) ++end;
    const int result =
        match(alone ? one_ : several_, text.substr(at, end - at), ends && end == valid ? 0 : PCRE2_PARTIAL_HARD);
    if (result == PCRE2_ERROR_PARTIAL) {
      if (alone) {
        if (budget < end - at) fail_backtracking();
        budget -= end - at, window = 2 * (end - at);
      }
      alone = true;
      continue;
    }
    window = kWindow, alone = false;
    const size_t origin = std::exchange(at, end);
    if (result == PCRE2_ERROR_NOMATCH) continue;
    std::array<size_t, 2 * kTogether + 2> offsets;
    std::copy_n(found, 2 * result, offsets.begin());  // take() may call split()
    for (int group = result > 1; group < result && begin < stop; ++group) {
      pass(origin + offsets[size_t(2 * group)], false);
      at = origin + offsets[size_t(2 * group) + 1];
      pass(at, true);
    }
  }
  if (begin < stop) pass(text.size(), false);
  return begin;
}

}  // namespace tg::detail
