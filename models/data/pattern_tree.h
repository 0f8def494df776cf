// The syntax tree of a pattern. Internal.
#pragma once
#include <tapegrad/models/data/code_points.h>

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
};

// The root is a choice. An Error names the offset of syntax that pattern.h does not list.
PatternNode parse_pattern(std::string_view pattern);

}  // namespace tg::detail
