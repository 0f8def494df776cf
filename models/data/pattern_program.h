// A compiled pattern: made by pattern_compile.cpp, run by pattern.cpp. Internal.
#pragma once
#include <tapegrad/models/data/pattern.h>
#include <tapegrad/models/data/pattern_classes.h>

#include <array>
#include <vector>

namespace tg {
namespace detail {
struct PatternStep {
  enum class Do : uint8_t {
    one,     // a character of the mask
    many,    // `a` to `b` characters of the mask, greedy; b -1: any
    either,  // step a, and on failure step b
    jump,    // step a
    look,    // the next steps must (not) match; then step a
    atomic,  // the next steps without backtracking; then step a
    end      // of the pattern, a look or an atomic part
  };
  Do op;
  // many: may backtrack. look: must not match. either: step a may be empty, so it may begin with any character.
  bool flag = false;
  uint64_t mask = 0;  // either: the first characters of step a
  int a = 0, b = 0;
};
}  // namespace detail

struct TextPattern::Program {
  using Node = detail::PatternNode;
  using Step = detail::PatternStep;
  using Do = Step::Do;

  explicit Program(const Node& root);
  // Whether a text can be split here. No match or lookahead has both characters adjacent, so the first part matches as
  // at the end of a text, and a match begins at the second.
  bool cuts(uint8_t before, uint8_t after) const {
    return before != detail::kNoClass && after != detail::kNoClass && !(follows[before] >> after & 1) &&
           (alone >> after & 1);
  }

  detail::CharacterClasses classes;
  std::vector<Step> steps;
  std::vector<int> heads;                   // of the alternatives
  std::array<std::vector<int>, 64> starts;  // alternatives that can begin with each class
  // Classes that can follow each class in a match or lookahead.
  std::array<uint64_t, 64> follows{};
  uint64_t alone = 0;  // match by themselves, whatever follows

 private:
  struct Ends {  // classes at the ends of the matches and lookaheads of a node
    uint64_t first = 0, last = 0;
    bool empty = false;
  };
  Ends ends_of(const Node&);                         // fills `follows`
  uint64_t alone_in(const Node& alternative) const;  // classes that can be its whole match
  size_t add(Step);
  size_t add_either(const Node& first);
  void generate(const Node&);
  void generate_choice(const Node&);
  void generate_repeat(const Node&);
  // Whether backtracking into a `many` can help: not before the end or a required character of a disjoint mask.
  bool may_give_back(size_t step) const;
};

}  // namespace tg
