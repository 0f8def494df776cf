// Rules that replace several ops by one: a pattern and the new op; ops/rewrite_rules.cpp has them. Not for eager ops.
// The tape stays: nodes keep values that gradients read.
#pragma once
#include <tapegrad/core/node.h>
#include <tapegrad/core/op.h>

namespace tg {

// Output 0 of an op of one type, or any value.
struct Pattern {
  const void* op = nullptr;  // Op::type(); null: any value, an input
  std::vector<Pattern> in = {};
  bool either_order = false;  // inputs may be swapped
  bool more = false;          // inputs beyond `in` go to the new op
};
struct Rule {
  std::string_view name;
  Pattern pattern;  // pattern whose root is an op
  // A result: output `out` of op `op` in preorder. Other outputs may only be read within the match.
  struct Result {
    uint8_t op, out;
  };
  std::vector<Result> results;
  // The new op for ops and input layouts in pattern order; null: does not apply. Only layouts and keyed attributes may
  // decide. The ops must be constant (Op::for_next_step()).
  OpPtr (*make)(std::span<const Op* const> ops, std::span<const Layout* const> in);
};
bool register_rules(std::span<const Rule>);  // called before main(); not copied; earlier rules win
template <class OpT> Pattern made_by(std::vector<Pattern> in) {
  return {.op = &Kernels<OpT>::table, .in = std::move(in)};
}

namespace detail {
struct Port {  // a node's input or output in the match
  uint32_t node, index;
};
struct Replacement {
  const Rule* rule;
  std::vector<uint32_t> order;  // node indices in pattern order
  std::vector<Port> in, out;
  std::vector<Layout> layouts;  // inferred, of the results
  // This evaluation's op: attributes outside of keys may differ from those in the plan.
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
