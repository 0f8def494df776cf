// A pattern compiled to steps: pattern_compile.cpp makes them, pattern_cuts.cpp finds where texts may be cut,
// pattern.cpp runs them. Internal to models/data.
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

struct TextPattern::Program {
  using Node = detail::PatternNode;
  using Step = detail::PatternStep;
  using Do = Step::Do;

  explicit Program(const Node& root);
  // Whether a text can be cut between two characters. No match and no look ahead has both, so what comes before is read
  // as at the end of a text; and a match begins at the second.
  bool cuts(uint8_t before, uint8_t after) const {
    return before != detail::kNoClass && after != detail::kNoClass && !(follows[before] >> after & 1) &&
           (alone >> after & 1);
  }

  detail::CharacterClasses classes;
  std::vector<Step> steps;
  std::vector<int> heads;                   // of the alternatives
  std::array<std::vector<int>, 64> starts;  // of the alternatives that can begin with each class
  std::array<uint64_t, 64> follows{};       // what can come after each class inside of a match or a look ahead
  uint64_t alone = 0;                       // what is a match by itself, whatever comes after it

 private:
  struct Begin {  // what a match of a node can begin with
    uint64_t mask = 0;
    bool empty = false;
  };
  Begin begin_of(const Node&) const;
  struct Ends {  // of the matches of a node
    uint64_t first = 0, last = 0;
    bool empty = false;
  };
  Ends neighbours(const Node&);                      // fills `follows`
  uint64_t alone_in(const Node& alternative) const;  // what matches it when all other parts match nothing
  size_t add(Step);
  size_t add_either(const Node& first);
  void generate(const Node&);
  void generate_choice(const Node&);
  void generate_repeat(const Node&);
  // Whether fewer characters can help what follows a `many`: not at the end, nor before a character of no common class.
  bool may_give_back(size_t step) const;
};

}  // namespace tg
