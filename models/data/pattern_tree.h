// What a pattern says, as a tree. Internal to models/data.
#pragma once
#include <tapegrad/models/data/code_points.h>

#include <string_view>
#include <vector>

namespace tg::detail {

struct PatternNode {
  enum class Kind { set, sequence, choice, repeat, look };
  Kind kind = Kind::set;
  CodeSet set;                    // one of these code points
  std::vector<PatternNode> kids;  // of a sequence and a choice; one of a repeat and of a look
  int least = 1, most = 1;        // of a repeat; most -1: any number
  bool possessive = false;        // a repeat gives nothing back
  bool negative = false;          // a look ahead at what must not follow
};

// Whether the pattern can match without a character.
bool can_be_empty(const PatternNode&);

// The tree of a pattern; its root is a choice. An Error that names the offset for syntax that pattern.h does not list.
PatternNode parse_pattern(std::string_view pattern);

}  // namespace tg::detail
