#include <tapegrad/core/check.h>
#include <tapegrad/models/data/pattern_program.h>

#include <algorithm>
#include <bit>

namespace tg {
using Kind = detail::PatternNode::Kind;

TextPattern::Program::Program(const Node& root) : classes(root) {
  std::vector<Ends> ends;
  for (const Node& kid : root.kids) {
    heads.push_back(int(steps.size()));
    generate(kid);
    steps.push_back({.op = Do::end});
    ends.push_back(ends_of(kid));
  }
  for (size_t i = 0; i < steps.size(); ++i)
    if (steps[i].op == Do::many && steps[i].flag) steps[i].flag = may_give_back(i);
  for (uint8_t c = 0; c < starts.size(); ++c)
    for (size_t h = 0; h < heads.size(); ++h)
      if (ends[h].empty || (ends[h].first >> c & 1)) starts[c].push_back(heads[h]);
  for (const Node& kid : root.kids) alone |= alone_in(kid);
}

TextPattern::Program::Ends TextPattern::Program::ends_of(const Node& node) {
  const auto link = [&](uint64_t last, uint64_t first) {
    for (; last != 0; last &= last - 1) follows[size_t(std::countr_zero(last))] |= first;
  };
  Ends all;
  switch (node.kind) {
    case Kind::set: return {classes.mask(node.set), classes.mask(node.set), false};
    case Kind::look: return {ends_of(node.kids[0]).first, 0, true};
    case Kind::repeat:
      all = ends_of(node.kids[0]);
      link(all.last, all.first);
      return {all.first, all.last, all.empty || node.least == 0};
    case Kind::sequence:
      all.empty = true;
      for (const Node& kid : node.kids) {
        const Ends e = ends_of(kid);
        link(all.last, e.first);
        all = {all.first | (all.empty ? e.first : 0), e.last | (e.empty ? all.last : 0), all.empty && e.empty};
      }
      return all;
    case Kind::choice:
      for (const Node& kid : node.kids) {
        const Ends e = ends_of(kid);
        all = {all.first | e.first, all.last | e.last, all.empty || e.empty};
      }
  }
  return all;
}

size_t TextPattern::Program::add(Step step) {
  constexpr size_t kMost = 20000;
  TG_CHECK(steps.size() < kMost, value, "[pattern] the pattern has more than {} steps. Make it shorter.", kMost);
  steps.push_back(step);
  return steps.size() - 1;
}

size_t TextPattern::Program::add_either(const Node& first) {
  const Ends e = ends_of(first);
  const size_t at = add({.op = Do::either, .flag = e.empty, .mask = e.first});
  steps[at].a = int(at + 1);
  return at;
}

void TextPattern::Program::generate(const Node& node) {
  switch (node.kind) {
    case Kind::set: add({.op = Do::one, .mask = classes.mask(node.set)}); break;
    case Kind::sequence:
      for (const Node& kid : node.kids) generate(kid);
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

void TextPattern::Program::generate_choice(const Node& node) {
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

void TextPattern::Program::generate_repeat(const Node& node) {
  const Node& inner = node.kids[0];
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

bool TextPattern::Program::may_give_back(size_t i) const {
  size_t next = i + 1;
  while (steps[next].op == Do::jump) next = size_t(steps[next].a);
  const Step& s = steps[next];
  const bool needs_one = s.op == Do::one || (s.op == Do::many && s.a > 0);
  return s.op != Do::end && !(needs_one && (s.mask & steps[i].mask) == 0);
}

// Safe splits of a text are between characters that are never adjacent in a match or lookahead.
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
