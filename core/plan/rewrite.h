// Rules that replace several ops by one: a pattern of ops, as data, and the new op. The planner matches patterns
// (rewrite.cpp) and knows no op; ops/rewrite_rules.cpp has the rules. Eager ops are not rewritten. The tape does not
// change: nodes keep the values that their gradients read.
#pragma once
#include <tapegrad/core/node.h>
#include <tapegrad/core/op.h>

namespace tg {

// A value: output 0 of an op of one type, or any value.
struct Pattern {
  const void* op = nullptr;  // Op::type(); null: any value, an input of the new op
  std::vector<Pattern> in = {};
  bool either_order = false;  // its two inputs may be swapped
  bool more = false;          // the op may have inputs beyond `in`; the new op gets them
};
struct Rule {
  std::string_view name;
  Pattern pattern;  // its root is an op
  // The results of the new op: output `out` of op number `op`, in preorder of the pattern. All other outputs may only
  // be read within the match, or the rule does not apply.
  struct Result {
    uint8_t op, out;
  };
  std::vector<Result> results;
  // The new op, given ops and input layouts in pattern order; null: the rule does not apply. Only layouts and
  // attributes in the ops' keys may decide. The ops must not change from step to step (Op::for_next_step()).
  OpPtr (*make)(std::span<const Op* const> ops, std::span<const Layout* const> in);
};
bool register_rules(std::span<const Rule>);  // before main(); not copied. Earlier rules win.
template <class OpT> Pattern made_by(std::vector<Pattern> in) {
  return {.op = &Kernels<OpT>::table, .in = std::move(in)};
}

namespace detail {
struct Port {  // an input or output of a node of the match
  uint32_t node, index;
};
// Nodes that run as one op.
struct Replacement {
  const Rule* rule;
  std::vector<uint32_t> order;  // indices of the nodes in pattern order
  std::vector<Port> in, out;
  std::vector<Layout> layouts;  // of the results, as the op infers them
  // The op for this evaluation: attributes outside of keys may differ from those at planning.
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
