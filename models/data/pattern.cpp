#include <tapegrad/core/check.h>
#include <tapegrad/models/data/pattern.h>
#include <tapegrad/models/data/pattern_classes.h>
#include <tapegrad/models/data/utf8.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace tg {
using detail::kNoClass;
using detail::PatternNode;
using Kind = PatternNode::Kind;

namespace detail {
struct PatternStep {
  enum class Do : uint8_t {
    one,     // a character of the mask
    many,    // `a` to `b` characters of the mask, as many as there are; b -1: any number
    either,  // step a, and on failure step b
    jump,    // step a
    look,    // the steps that follow must match, or must not; then step a
    atomic,  // the steps that follow, which are not tried again; then step a
    end      // of the pattern, of a look and of an atomic part
  };
  Do op;
  bool flag = false;  // many: gives characters back. look: must not match. either: any character may come first.
  uint64_t mask = 0;  // either: what step a can begin with
  int a = 0, b = 0;
};
}  // namespace detail
using Step = detail::PatternStep;
using Do = Step::Do;

struct TextPattern::Program {
  explicit Program(const PatternNode& root) : classes(root) {
    std::vector<Begin> begins;
    for (const PatternNode& kid : root.kids) {
      heads.push_back(int(steps.size()));
      generate(kid);
      steps.push_back({.op = Do::end});
      begins.push_back(begin_of(kid));
    }
    for (size_t i = 0; i < steps.size(); ++i)
      if (steps[i].op == Do::many && steps[i].flag) steps[i].flag = may_give_back(i);
    for (uint8_t c = 0; c < starts.size(); ++c)
      for (size_t h = 0; h < heads.size(); ++h)
        if (begins[h].empty || (begins[h].mask >> c & 1)) starts[c].push_back(heads[h]);
    neighbours(root);
    for (const PatternNode& kid : root.kids) alone |= alone_in(kid);
  }
  // Whether a text can be cut between two characters. No match and no look ahead has both, so what comes before is read
  // as at the end of a text; and a match begins at the second.
  bool cuts(uint8_t before, uint8_t after) const {
    return before != kNoClass && after != kNoClass && !(follows[before] >> after & 1) && (alone >> after & 1);
  }

  detail::CharacterClasses classes;
  std::vector<Step> steps;
  std::vector<int> heads;                   // of the alternatives
  std::array<std::vector<int>, 64> starts;  // of the alternatives that can begin with each class
  std::array<uint64_t, 64> follows{};       // what can come after each class inside of a match or a look ahead
  uint64_t alone = 0;                       // what is a match by itself, whatever comes after it

 private:
  struct Begin {
    uint64_t mask = 0;
    bool empty = false;
  };
  Begin begin_of(const PatternNode& node) const {
    Begin all;
    switch (node.kind) {
      case Kind::set: return {classes.mask(node.set), false};
      case Kind::look: return {0, true};
      case Kind::repeat: all = begin_of(node.kids[0]); return {all.mask, all.empty || node.least == 0};
      case Kind::sequence:
        for (const PatternNode& kid : node.kids) {
          const Begin b = begin_of(kid);
          all.mask |= b.mask;
          if (!b.empty) return all;
        }
        return {all.mask, true};
      case Kind::choice:
        for (const PatternNode& kid : node.kids) {
          const Begin b = begin_of(kid);
          all = {all.mask | b.mask, all.empty || b.empty};
        }
    }
    return all;
  }
  struct Ends {
    uint64_t first = 0, last = 0;
    bool empty = false;
  };
  Ends neighbours(const PatternNode& node) {
    const auto link = [&](uint64_t last, uint64_t first) {
      for (; last != 0; last &= last - 1) follows[size_t(std::countr_zero(last))] |= first;
    };
    Ends all;
    switch (node.kind) {
      case Kind::set: return {classes.mask(node.set), classes.mask(node.set), false};
      case Kind::look: return {neighbours(node.kids[0]).first, 0, true};
      case Kind::repeat:
        all = neighbours(node.kids[0]);
        link(all.last, all.first);
        return {all.first, all.last, all.empty || node.least == 0};
      case Kind::sequence:
        all.empty = true;
        for (const PatternNode& kid : node.kids) {
          const Ends e = neighbours(kid);
          link(all.last, e.first);
          all = {all.first | (all.empty ? e.first : 0), e.last | (e.empty ? all.last : 0), all.empty && e.empty};
        }
        return all;
      case Kind::choice:
        for (const PatternNode& kid : node.kids) {
          const Ends e = neighbours(kid);
          all = {all.first | e.first, all.last | e.last, all.empty || e.empty};
        }
    }
    return all;
  }
  // Of an alternative: what matches it when all other parts match nothing.
  uint64_t alone_in(const PatternNode& alternative) const {
    const auto optional = [](const PatternNode& kid) { return kid.kind == Kind::repeat && kid.least == 0; };
    uint64_t mask = 0;
    for (size_t k = 0; k < alternative.kids.size(); ++k) {
      const PatternNode& kid = alternative.kids[k];
      const PatternNode& inner = kid.kind == Kind::repeat ? kid.kids[0] : kid;
      const bool others = std::all_of(alternative.kids.begin(), alternative.kids.end(), [&](const PatternNode& other) {
        return &other == &kid || (optional(other) && (&other > &kid || !other.possessive));
      });
      if (inner.kind == Kind::set && (&inner == &kid || kid.least <= 1) && others) mask |= classes.mask(inner.set);
    }
    return mask;
  }
  size_t add(Step step) {
    constexpr size_t kMost = 20000;
    TG_CHECK(steps.size() < kMost, value, "[pattern] the pattern has more than {} steps. Make it shorter.", kMost);
    steps.push_back(step);
    return steps.size() - 1;
  }
  size_t add_either(const PatternNode& first) {
    const Begin b = begin_of(first);
    const size_t at = add({.op = Do::either, .flag = b.empty, .mask = b.mask});
    steps[at].a = int(at + 1);
    return at;
  }
  void generate(const PatternNode& node) {
    switch (node.kind) {
      case Kind::set: add({.op = Do::one, .mask = classes.mask(node.set)}); break;
      case Kind::sequence:
        for (const PatternNode& kid : node.kids) generate(kid);
        break;
      case Kind::choice: generate_choice(node); break;
      case Kind::repeat: generate_repeat(node); break;
      case Kind::look: {
        const size_t at = add({.op = Do::look, .flag = node.negative});
        generate(node.kids[0]);
        add({.op = Do::end});
        steps[at].a = int(steps.size());
      }
    }
  }
  void generate_choice(const PatternNode& node) {
    std::vector<size_t> jumps;
    for (size_t i = 0; i < node.kids.size(); ++i) {
      if (i + 1 == node.kids.size()) {
        generate(node.kids[i]);
        break;
      }
      const size_t either = add_either(node.kids[i]);
      generate(node.kids[i]);
      jumps.push_back(add({.op = Do::jump}));
      steps[either].b = int(steps.size());
    }
    for (const size_t j : jumps) steps[j].a = int(steps.size());
  }
  void generate_repeat(const PatternNode& node) {
    const PatternNode& inner = node.kids[0];
    if (inner.kind == Kind::set) {
      add({Do::many, !node.possessive, classes.mask(inner.set), node.least, node.most});
      return;
    }
    const size_t atomic = node.possessive ? add({.op = Do::atomic}) : 0;
    for (int i = 0; i < node.least; ++i) generate(inner);
    if (node.most < 0) {
      const size_t loop = add_either(inner);
      generate(inner);
      add({.op = Do::jump, .a = int(loop)});
      steps[loop].b = int(steps.size());
    }
    std::vector<size_t> optional;
    for (int i = node.least; i < node.most; ++i) {
      optional.push_back(add_either(inner));
      generate(inner);
    }
    for (const size_t o : optional) steps[o].b = int(steps.size());
    if (!node.possessive) return;
    add({.op = Do::end});
    steps[atomic].a = int(steps.size());
  }
  // Whether fewer characters can help what follows a `many`: not at the end, nor before a character of no common class.
  bool may_give_back(size_t i) const {
    size_t next = i + 1;
    while (steps[next].op == Do::jump) next = size_t(steps[next].a);
    const Step& s = steps[next];
    const bool needs_one = s.op == Do::one || (s.op == Do::many && s.a > 0);
    return s.op != Do::end && !(needs_one && (s.mask & steps[i].mask) == 0);
  }
};

namespace {

// The search in one text.
class Search {
 public:
  Search(const std::vector<Step>& steps, std::string_view classes, int64_t budget)
      : steps_(steps),
        text_(reinterpret_cast<const uint8_t*>(classes.data())),
        size_(classes.size()),
        budget_(budget) {}

  static constexpr size_t kNone = size_t(-1);
  // The end of the match of the steps from `step` on at a position; kNone: there is none.
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
  // What is tried next on failure: `step` at `at`; or, of a `many`, the step after it with one character fewer, as long
  // as there are more than `least`.
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
             "[pattern] the search for pieces of the text takes too many steps. The pattern tries too much again; make "
             "it simpler.");
  }

  const std::vector<Step>& steps_;
  const uint8_t* text_;
  size_t size_;
  int64_t budget_;
  std::vector<Open> open_;
};

// Goes through a text by characters.
class Cursor {
 public:
  Cursor(std::string_view text, std::string_view classes) : text_(text), classes_(classes) {}
  size_t forward(size_t to) {  // the offset of character `to`, which is not before the last one
    if (text_.size() == classes_.size()) return to;
    constexpr uint8_t kLength[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
    for (; at_ < to; ++at_) offset_ += uint8_t(classes_[at_]) == kNoClass ? 1 : kLength[uint8_t(text_[offset_]) >> 4];
    return offset_;
  }

 private:
  std::string_view text_, classes_;
  size_t at_ = 0, offset_ = 0;
};

}  // namespace

TextPattern::TextPattern(std::string_view pattern)
    : program_(std::make_shared<const Program>(detail::parse_pattern(pattern))) {}

void TextPattern::split(std::string_view text, const Take& take) const {
  const Program& p = *program_;
  std::string classes;
  p.classes.translate(text, classes);
  Search search(p.steps, classes, int64_t(1'000'000 + 64 * text.size()));
  Cursor cursor(text, classes);
  size_t begin = 0;  // of what is not passed on
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
    const std::string_view window = text.substr(begin, at - begin + kWindow + 4);  // over the seam of two windows
    program_->classes.translate(window, classes);
    Cursor cursor(window, classes);
    for (size_t i = 1; i < classes.size(); ++i)
      if (program_->cuts(uint8_t(classes[i - 1]), uint8_t(classes[i])))
        if (const size_t found = begin + cursor.forward(i); found >= from) return found;
  }
  return text.size();
}

}  // namespace tg
