// Safe splits of a text: between characters that are never adjacent in a match or lookahead.
#include <tapegrad/models/data/pattern_program.h>

#include <algorithm>
#include <bit>

namespace tg {
using Kind = detail::PatternNode::Kind;

TextPattern::Program::Ends TextPattern::Program::neighbours(const Node& node) {
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
      for (const Node& kid : node.kids) {
        const Ends e = neighbours(kid);
        link(all.last, e.first);
        all = {all.first | (all.empty ? e.first : 0), e.last | (e.empty ? all.last : 0), all.empty && e.empty};
      }
      return all;
    case Kind::choice:
      for (const Node& kid : node.kids) {
        const Ends e = neighbours(kid);
        all = {all.first | e.first, all.last | e.last, all.empty || e.empty};
      }
  }
  return all;
}

uint64_t TextPattern::Program::alone_in(const Node& alternative) const {
  const auto optional = [](const Node& kid) { return kid.kind == Kind::repeat && kid.least == 0; };
  uint64_t mask = 0;
  for (size_t k = 0; k < alternative.kids.size(); ++k) {
    const Node& kid = alternative.kids[k];
    const Node& inner = kid.kind == Kind::repeat ? kid.kids[0] : kid;
    const bool others = std::all_of(alternative.kids.begin(), alternative.kids.end(), [&](const Node& other) {
      return &other == &kid || (optional(other) && (&other > &kid || !other.possessive));
    });
    if (inner.kind == Kind::set && (&inner == &kid || kid.least <= 1) && others) mask |= classes.mask(inner.set);
  }
  return mask;
}

}  // namespace tg
