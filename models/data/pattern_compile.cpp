#include <tapegrad/core/check.h>
#include <tapegrad/models/data/pattern_program.h>

namespace tg {
using Kind = detail::PatternNode::Kind;

TextPattern::Program::Program(const Node& root) : classes(root) {
  std::vector<Begin> begins;
  for (const Node& kid : root.kids) {
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
  for (const Node& kid : root.kids) alone |= alone_in(kid);
}

TextPattern::Program::Begin TextPattern::Program::begin_of(const Node& node) const {
  Begin all;
  switch (node.kind) {
    case Kind::set: return {classes.mask(node.set), false};
    case Kind::look: return {0, true};
    case Kind::repeat: all = begin_of(node.kids[0]); return {all.mask, all.empty || node.least == 0};
    case Kind::sequence:
      for (const Node& kid : node.kids) {
        const Begin b = begin_of(kid);
        all.mask |= b.mask;
        if (!b.empty) return all;
      }
      return {all.mask, true};
    case Kind::choice:
      for (const Node& kid : node.kids) {
        const Begin b = begin_of(kid);
        all = {all.mask | b.mask, all.empty || b.empty};
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
  const Begin b = begin_of(first);
  const size_t at = add({.op = Do::either, .flag = b.empty, .mask = b.mask});
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

}  // namespace tg
