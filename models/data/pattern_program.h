// A pattern as a tree (pattern_tree.cpp), and compiled to steps (pattern_compile.cpp) that pattern.cpp runs. Internal.
#pragma once
#include <tapegrad/models/data/code_points.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace tg::detail {

struct PatternNode {
  enum class Kind { set, sequence, choice, repeat, look };
  Kind kind = Kind::set;
  CodeSet set{};                    // one of these code points
  std::vector<PatternNode> kids{};  // of a sequence, choice, repeat or look
  int least = 1, most = 1;          // of a repeat; most -1: any number
  bool possessive = false;          // a repeat without backtracking
  bool negative = false;            // a negative lookahead
  bool empty = false;               // can match without a character
};
// The root is a choice. An Error names the offset of syntax that pattern.h does not list.
PatternNode parse_pattern(std::string_view pattern);

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

// Code points that all sets treat alike form a class: a byte per character of a text, a bit in the mask of a set.
struct PatternProgram {
  static constexpr uint8_t kNoClass = 63;  // of an invalid UTF-8 byte
  static constexpr uint32_t kBlock = 128;

  void translate(std::string_view text, std::string& to) const;
  // Whether a text can be split here. No match or lookahead has both characters adjacent, so the first part matches as
  // at the end of a text, and a match begins at the second.
  bool cuts(uint8_t before, uint8_t after) const {
    return before != kNoClass && after != kNoClass && !(follows[before] >> after & 1) && (alone >> after & 1);
  }

  std::vector<uint8_t> blocks{};     // classes; the first block is ASCII
  std::vector<uint16_t> block_of{};  // by code point / kBlock
  std::vector<PatternStep> steps{};
  std::array<std::vector<int>, 64> starts{};  // alternatives that can begin with each class
  // Classes that can follow each class in a match or lookahead.
  std::array<uint64_t, 64> follows{};
  uint64_t alone = 0;  // match by themselves, whatever follows
};
PatternProgram compile_pattern(const PatternNode& root);

}  // namespace tg::detail
