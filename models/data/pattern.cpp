#include <tapegrad/core/check.h>
#include <tapegrad/models/data/pattern.h>
#include <tapegrad/models/data/pattern_program.h>
#include <tapegrad/models/data/utf8.h>

#include <algorithm>

namespace tg {
using detail::PatternProgram;
namespace {
using Step = detail::PatternStep;
using Do = Step::Do;

// The backtracking search in a text.
class Search {
 public:
  Search(const std::vector<Step>& steps, std::string_view classes, int64_t budget)
      : steps_(steps),
        text_(reinterpret_cast<const uint8_t*>(classes.data())),
        size_(classes.size()),
        budget_(budget) {}

  static constexpr size_t kNone = size_t(-1);
  // The end of a match of the steps from `step` on, or kNone.
  size_t match(int step, size_t at) {
    const size_t base = open_.size();
    while (true) {
      const Step& s = steps_[size_t(step)];
      spend();
      bool ok = true;
      switch (s.op) {
        case Do::one:
          ok = has(s, at);
          ++at, ++step;
          break;
        case Do::many: {
          const size_t most = s.b < 0 ? size_ : std::min(size_, at + size_t(s.b));
          size_t end = at;
          while (end < most && (s.mask >> text_[end] & 1)) ++end;
          spend(end - at);
          ok = end - at >= size_t(s.a);
          if (ok && s.flag && end - at > size_t(s.a)) open_.push_back({step, at + size_t(s.a), end});
          at = end, ++step;
          break;
        }
        case Do::either:
          if (!s.flag && !has(s, at)) {
            step = s.b;
            break;
          }
          open_.push_back({s.b, kNone, at});
          step = s.a;
          break;
        case Do::jump: step = s.a; break;
        case Do::look:
          ok = (match(step + 1, at) != kNone) != s.flag;
          step = s.a;
          break;
        case Do::atomic:
          at = match(step + 1, at);
          ok = at != kNone;
          step = s.a;
          break;
        case Do::end: open_.resize(base); return at;
      }
      if (ok) continue;
      if (open_.size() == base) return kNone;
      go_back(step, at);
    }
  }

 private:
  // The next attempt: `step` at `at`, or the step after a `many` with one character fewer, down to `least`.
  struct Open {
    int step;
    size_t least, at;
  };
  void go_back(int& step, size_t& at) {
    Open& last = open_.back();
    spend();
    if (last.least == kNone) {
      step = last.step, at = last.at;
      open_.pop_back();
      return;
    }
    step = last.step + 1, at = --last.at;
    if (last.at == last.least) open_.pop_back();
  }
  bool has(const Step& s, size_t at) const { return at < size_ && (s.mask >> text_[at] & 1); }
  void spend(size_t steps = 1) {
    TG_CHECK((budget_ -= int64_t(steps)) >= 0, value,
             "[pattern] splitting the text takes too many steps. The pattern backtracks too much; make it simpler.");
  }

  const std::vector<Step>& steps_;
  const uint8_t* text_;
  size_t size_;
  int64_t budget_;
  std::vector<Open> open_;
};

// Converts indices of characters to offsets.
class Cursor {
 public:
  Cursor(std::string_view text, std::string_view classes) : text_(text), classes_(classes) {}
  size_t forward(size_t to) {  // not before the last one
    if (text_.size() == classes_.size()) return to;
    constexpr uint8_t kLength[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
    for (; at_ < to; ++at_)
      offset_ += uint8_t(classes_[at_]) == PatternProgram::kNoClass ? 1 : kLength[uint8_t(text_[offset_]) >> 4];
    return offset_;
  }

 private:
  std::string_view text_, classes_;
  size_t at_ = 0, offset_ = 0;
};

}  // namespace

void PatternProgram::translate(std::string_view text, std::string& to) const {
  to.resize(text.size());
  size_t n = 0;
  for (size_t at = 0; at < text.size();) {
    const auto byte = uint8_t(text[at]);
    if (byte < kBlock) {
      to[n++] = char(blocks[byte]);
      ++at;
      continue;
    }
    const detail::Utf8 c = detail::first_of(text.substr(at));
    to[n++] = char(c.length ? blocks[block_of[c.code / kBlock] * kBlock + c.code % kBlock] : kNoClass);
    at += std::max<size_t>(c.length, 1);
  }
  to.resize(n);
}

TextPattern::TextPattern(std::string_view pattern)
    : text_(pattern),
      program_(std::make_shared<const PatternProgram>(detail::compile_pattern(detail::parse_pattern(pattern)))) {}

void TextPattern::split(std::string_view text, const Take& take) const {
  const PatternProgram& p = *program_;
  std::string classes;
  p.translate(text, classes);
  Search search(p.steps, classes, int64_t(1'000'000 + 64 * text.size()));
  Cursor cursor(text, classes);
  size_t begin = 0;  // of pending text
  const auto pass = [&](size_t end, bool matched) {
    if (end > begin) take(begin, end, matched);
    begin = end;
  };
  for (size_t at = 0; at < classes.size();) {
    size_t end = Search::kNone;
    for (const int head : p.starts[uint8_t(classes[at])])
      if (end = search.match(head, at); end != Search::kNone) break;
    if (end == Search::kNone) {
      ++at;
      continue;
    }
    pass(cursor.forward(at), false);
    pass(cursor.forward(end), true);
    at = end;
  }
  pass(text.size(), false);
}

size_t TextPattern::cut_from(std::string_view text, size_t from) const {
  constexpr size_t kWindow = 4096;
  std::string classes;
  for (size_t at = from; at < text.size(); at += kWindow) {
    size_t begin = at;
    while (begin > 0 && at - begin < 4 && (begin == at || (uint8_t(text[begin]) & 0xC0) == 0x80)) --begin;
    const std::string_view window = text.substr(begin, at - begin + kWindow + 4);  // overlaps the next window
    program_->translate(window, classes);
    Cursor cursor(window, classes);
    for (size_t i = 1; i < classes.size(); ++i)
      if (program_->cuts(uint8_t(classes[i - 1]), uint8_t(classes[i])))
        if (const size_t found = begin + cursor.forward(i); found >= from) return found;
  }
  return text.size();
}

}  // namespace tg
