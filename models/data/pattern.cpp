#include <tapegrad/core/check.h>
#include <tapegrad/models/data/pattern.h>
#include <tapegrad/models/data/pattern_tree.h>
#include <tapegrad/models/data/utf8.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

namespace tg {
namespace {
using detail::CodeSet;
using detail::kCodePoints;
using detail::PatternNode;
using Kind = PatternNode::Kind;

constexpr uint8_t kNoClass = 63;  // of a byte that is no UTF-8
constexpr uint32_t kBlock = 128;

// Code points that all sets of a pattern treat alike are one class: a text becomes one byte for each character, and a
// set one bit for each class.
class Classes {
 public:
  explicit Classes(const PatternNode& root) {
    collect(root);
    number();
  }
  uint64_t mask(const CodeSet& set) const {
    return masks_[size_t(std::find(sets_.begin(), sets_.end(), set) - sets_.begin())];
  }
  void translate(std::string_view text, std::string& to) const {
    to.resize(text.size());
    size_t n = 0;
    for (size_t at = 0; at < text.size();) {
      const auto byte = uint8_t(text[at]);
      if (byte < kBlock) {
        to[n++] = char(blocks_[byte]);  // the first block is the one of ASCII
        ++at;
        continue;
      }
      const detail::Utf8 c = detail::first_of(text.substr(at));
      to[n++] = char(c.length ? blocks_[block_of_[c.code / kBlock] * kBlock + c.code % kBlock] : kNoClass);
      at += std::max<size_t>(c.length, 1);
    }
    to.resize(n);
  }

 private:
  void collect(const PatternNode& node) {
    if (node.kind == Kind::set && std::find(sets_.begin(), sets_.end(), node.set) == sets_.end())
      sets_.push_back(node.set);
    for (const PatternNode& kid : node.kids) collect(kid);
  }
  void number() {
    std::vector<char32_t> begins{0, kCodePoints};
    for (const CodeSet& set : sets_)
      for (const auto& [first, last] : set.ranges()) begins.insert(begins.end(), {first, last + 1});
    std::sort(begins.begin(), begins.end());
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    masks_.resize(sets_.size());
    std::map<std::vector<bool>, uint8_t> known;
    std::string all(kCodePoints, '\0');
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      std::vector<bool> in;
      for (const CodeSet& set : sets_) in.push_back(set.has(begins[i]));
      const auto [entry, is_new] = known.emplace(in, uint8_t(known.size()));
      TG_CHECK(known.size() < kNoClass, value,
               "[pattern] the pattern tells more than 62 kinds of characters apart. Make it simpler.");
      if (is_new)
        for (size_t s = 0; s < sets_.size(); ++s) masks_[s] |= uint64_t(in[s]) << entry->second;
      std::fill(all.begin() + ptrdiff_t(begins[i]), all.begin() + ptrdiff_t(begins[i + 1]), char(entry->second));
    }
    std::map<std::string_view, uint16_t> blocks;
    for (uint32_t at = 0; at < kCodePoints; at += kBlock) {
      const std::string_view block = std::string_view(all).substr(at, kBlock);
      const auto [entry, is_new] = blocks.emplace(block, uint16_t(blocks.size()));
      if (is_new) blocks_.insert(blocks_.end(), block.begin(), block.end());
      block_of_.push_back(entry->second);
    }
  }

  std::vector<CodeSet> sets_;
  std::vector<uint64_t> masks_;
  std::vector<uint8_t> blocks_;
  std::vector<uint16_t> block_of_;
};

struct Step {
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
using Do = Step::Do;

}  // namespace

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
  }

  Classes classes;
  std::vector<Step> steps;
  std::vector<int> heads;                   // of the alternatives
  std::array<std::vector<int>, 64> starts;  // of the alternatives that can begin with each class

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
  void spend() {
    TG_CHECK(--budget_ >= 0, value,
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

}  // namespace tg
