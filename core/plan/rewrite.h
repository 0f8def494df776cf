// Rules by which a plan runs several ops as one: a pattern of ops, as data, and the op that takes their place. The
// planner looks for patterns (rewrite.cpp) and knows no op; the rules are those of ops/rewrite_rules.cpp. Only what is
// planned is rewritten, so an eager op runs as it was emitted. The tape is not touched: nodes keep what their own
// gradients read.
#pragma once
#include <tapegrad/core/node.h>
#include <tapegrad/core/op.h>

namespace tg {

// A value: what an op of one type makes of values as output 0, or any value at all.
struct Pattern {
  const void* op = nullptr;  // Op::type(); null: any value, and the next input of the op that takes their place
  std::vector<Pattern> in = {};
  bool either_order = false;  // of its two inputs
  bool more = false;          // it may have inputs beyond `in`: further inputs, too
};
struct Rule {
  std::string_view name;
  Pattern pattern;  // its root is an op
  // What the new op makes, output by output: output `out` of op number `op` of the pattern, the root first, then those
  // of its first input, and so on. What else the ops would make must be read by them alone, or the rule does not apply.
  struct Result {
    uint8_t op, out;
  };
  std::vector<Result> results;
  // The new op, for ops and layouts of inputs in the order of the pattern, or null: the rule does not apply. Layouts
  // and attributes in the ops' keys decide about that, no others; none of the ops has a next().
  OpPtr (*make)(std::span<const Op* const> ops, std::span<const Layout* const> in);
};
bool register_rules(std::span<const Rule>);  // before main(); they live on. Earlier ones win.
template <class OpT> Pattern made_by(std::vector<Pattern> in) {
  return {.op = &Kernels<OpT>::table, .in = std::move(in)};
}

namespace detail {
struct Port {  // an input or an output of one of the nodes that run together
  uint32_t node, index;
};
// Nodes that run as one op.
struct Replacement {
  const Rule* rule;
  std::vector<uint32_t> order;  // the nodes' places, in the order of the pattern
  std::vector<Port> in, out;
  std::vector<Layout> layouts;  // of the results, as the op makes them
  // The op for the nodes of this evaluation: attributes outside of keys may be other than when it was planned.
  template <class NodeAt> OpPtr op(NodeAt node) const {
    SmallVec<const Op*, 8> ops;
    SmallVec<const Layout*, 8> layouts_in;
    for (const uint32_t n : order) ops.emplace_back(node(n).op.get());
    for (const Port& p : in) layouts_in.emplace_back(&node(p.node).in[p.index].value->layout);
    return rule->make({ops.data(), ops.size()}, {layouts_in.data(), layouts_in.size()});
  }
};
}  // namespace detail
}  // namespace tg
