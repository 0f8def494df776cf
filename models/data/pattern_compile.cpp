#include <tapegrad/core/check.h>
#include <tapegrad/models/data/pattern_program.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

namespace tg::detail {
namespace {
using Node = PatternNode;
using Kind = Node::Kind;
using Do = PatternStep::Do;

class PatternCompiler {
 public:
  explicit PatternCompiler(const Node& root) {
    collect(root);
    number_classes();
    for (const Node& kid : root.kids) {
      const auto head = int(steps_.size());
      generate(kid);
      steps_.push_back({.op = Do::end});
      for (uint64_t first = ends_of(kid).first; first != 0; first &= first - 1)
        p_.starts[size_t(std::countr_zero(first))].push_back(head);
      p_.alone |= alone_in(kid);
    }
    for (size_t i = 0; i < steps_.size(); ++i)
      if (steps_[i].op == Do::many && steps_[i].flag) steps_[i].flag = may_give_back(i);
  }
  PatternProgram take() { return std::move(p_); }

 private:
  void collect(const Node& node) {
    if (node.kind == Kind::set && std::ranges::find(sets_, node.set) == sets_.end()) sets_.push_back(node.set);
    for (const Node& kid : node.kids) collect(kid);
  }
  void number_classes() {
    std::vector<char32_t> begins{0, kCodePoints};
    for (const CodeSet& set : sets_)
      for (const auto& [first, last] : set.ranges()) begins.insert(begins.end(), {first, last + 1});
    std::ranges::sort(begins);
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    masks_.resize(sets_.size());
    std::map<std::vector<bool>, uint8_t> known;
    std::string all(kCodePoints, '\0');
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      std::vector<bool> in;
      for (const CodeSet& set : sets_) in.push_back(set.has(begins[i]));
      const auto [entry, is_new] = known.emplace(in, uint8_t(known.size()));
      TG_CHECK(known.size() < PatternProgram::kNoClass, value,
               "[pattern] the pattern tells more than 62 kinds of characters apart. Make it simpler.");
      if (is_new)
        for (size_t s = 0; s < sets_.size(); ++s) masks_[s] |= uint64_t(in[s]) << entry->second;
      std::fill(all.begin() + ptrdiff_t(begins[i]), all.begin() + ptrdiff_t(begins[i + 1]), char(entry->second));
    }
    std::map<std::string_view, uint16_t> blocks;
    std::string_view block;
    for (uint32_t at = 0; at < kCodePoints; at += PatternProgram::kBlock) {
      const std::string_view before = std::exchange(block, std::string_view(all).substr(at, PatternProgram::kBlock));
      if (block == before) {  // most are
        p_.block_of.push_back(p_.block_of.back());
        continue;
      }
      const auto [entry, is_new] = blocks.emplace(block, uint16_t(blocks.size()));
      if (is_new) p_.blocks.insert(p_.blocks.end(), block.begin(), block.end());
      p_.block_of.push_back(entry->second);
    }
  }
  uint64_t mask(const Node& node) const { return masks_[size_t(std::ranges::find(sets_, node.set) - sets_.begin())]; }

  struct Ends {  // classes at the ends of the matches and lookaheads of a node
    uint64_t first = 0, last = 0;
  };
  Ends ends_of(const Node& node) {  // fills `follows`
    if (node.kind == Kind::set) return {mask(node), mask(node)};
    const auto link = [&](uint64_t last, uint64_t first) {
      for (; last != 0; last &= last - 1) p_.follows[size_t(std::countr_zero(last))] |= first;
    };
    Ends all;
    bool begins = true;  // no kid before it needs a character
    for (const Node& kid : node.kids) {
      const bool after_others = node.kind == Kind::sequence;
      const Ends e = ends_of(kid);
      if (after_others) link(all.last, e.first);
      if (begins || !after_others) all.first |= e.first;
      all.last = e.last | (kid.empty || !after_others ? all.last : 0);
      begins = begins && kid.empty;
    }
    if (node.kind == Kind::repeat) link(all.last, all.first);
    if (node.kind == Kind::look) all.last = 0;
    return all;
  }

  size_t add(PatternStep step) {
    constexpr size_t kMost = 20000;
    TG_CHECK(steps_.size() < kMost, value, "[pattern] the pattern has more than {} steps. Make it shorter.", kMost);
    steps_.push_back(step);
    return steps_.size() - 1;
  }
  int end() const { return int(steps_.size()); }
  // The caller sets `b` of the returned step.
  size_t generate_either(const Node& node) {
    const size_t at = add({.op = Do::either, .flag = node.empty, .mask = ends_of(node).first, .a = end() + 1});
    generate(node);
    return at;
  }
  void generate_enclosed(PatternStep step, const Node& node) {
    const size_t at = add(step);
    generate(node);
    add({.op = Do::end});
    steps_[at].a = end();
  }
  void generate(const Node& node) {
    switch (node.kind) {
      case Kind::set: add({.op = Do::one, .mask = mask(node)}); break;
      case Kind::sequence:
        for (const Node& kid : node.kids) generate(kid);
        break;
      case Kind::choice: generate_choice(node); break;
      case Kind::repeat: generate_repeat(node); break;
      case Kind::look: generate_enclosed({.op = Do::look, .flag = node.negative}, node.kids[0]);
    }
  }
  void generate_choice(const Node& node) {
    std::vector<size_t> jumps;
    for (size_t i = 0; i + 1 < node.kids.size(); ++i) {
      const size_t either = generate_either(node.kids[i]);
      jumps.push_back(add({.op = Do::jump}));
      steps_[either].b = end();
    }
    generate(node.kids.back());
    for (const size_t j : jumps) steps_[j].a = end();
  }
  void generate_repeat(const Node& node) {
    const Node& inner = node.kids[0];
    if (inner.kind == Kind::set) {
      add({Do::many, !node.possessive, mask(inner), node.least, node.most});
      return;
    }
    if (node.possessive) {
      Node plain = node;
      plain.possessive = false;
      return generate_enclosed({.op = Do::atomic}, plain);
    }
    for (int i = 0; i < node.least; ++i) generate(inner);
    std::vector<size_t> optional;
    if (node.most < 0) {
      optional.push_back(generate_either(inner));
      add({.op = Do::jump, .a = int(optional[0])});
    }
    for (int i = node.least; i < node.most; ++i) optional.push_back(generate_either(inner));
    for (const size_t o : optional) steps_[o].b = end();
  }

  // Whether backtracking into a `many` can help: not before the end or a required character of a disjoint mask.
  bool may_give_back(size_t i) const {
    size_t next = i + 1;
    while (steps_[next].op == Do::jump) next = size_t(steps_[next].a);
    const PatternStep& s = steps_[next];
    const bool needs_one = s.op == Do::one || (s.op == Do::many && s.a > 0);
    return s.op != Do::end && !(needs_one && (s.mask & steps_[i].mask) == 0);
  }
  // Classes that can be the whole match of an alternative.
  uint64_t alone_in(const Node& alternative) const {
    const auto optional = [](const Node& kid) { return kid.kind == Kind::repeat && kid.least == 0; };
    uint64_t all = 0;
    for (const Node& kid : alternative.kids) {
      const Node& inner = kid.kind == Kind::repeat ? kid.kids[0] : kid;
      const bool others = std::ranges::all_of(alternative.kids, [&](const Node& other) {
        return &other == &kid || (optional(other) && (&other > &kid || !other.possessive));
      });
      if (inner.kind == Kind::set && (&inner == &kid || kid.least <= 1) && others) all |= mask(inner);
    }
    return all;
  }

  PatternProgram p_;
  std::vector<PatternStep>& steps_ = p_.steps;
  std::vector<CodeSet> sets_;
  std::vector<uint64_t> masks_;  // of sets_
};
}  // namespace

PatternProgram compile_pattern(const PatternNode& root) { return PatternCompiler(root).take(); }

}  // namespace tg::detail
