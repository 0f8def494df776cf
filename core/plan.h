// The nodes of one evaluation, and the plan by which they are run: who is merged with whom, what runs together, in
// which order, and where results lie. A plan depends on structure, layouts and liveness alone, so it is kept and used
// again for the next graph that looks the same. For plan.cpp, passes.cpp, places.cpp and dump.cpp; users see
// evaluate().
#pragma once
#include <tapegrad/core/chain.h>
#include <tapegrad/core/evaluate.h>

#include <vector>

namespace tg::detail {

inline constexpr uint32_t kNone = ~0u;

struct Slot {          // a value: a leaf, or an output of a node
  const Value* value;  // null when nobody holds it
  const Layout* layout;
  uint32_t node;   // that makes it; kNone: a leaf
  uint32_t group;  // values that share storage: the slot whose group members below speak for all; a forest, see find()
  uint32_t uses = 0;    // by inputs of nodes of the graph
  bool pinned = false;  // held outside the graph, or saved by the tape
  // Of a group, by position in the plan's steps:
  uint32_t first = kNone, last = 0;
  uint32_t reads = 0;  // by the step that is planned now
};
struct Graph {
  std::vector<Ref<Node>> nodes;    // in the order of emission
  std::vector<Slot> slots;         // outputs of node n: nodes[n]->slot and those after it
  std::vector<uint32_t> in;        // slots of all inputs, node by node
  std::vector<uint32_t> first_in;  // of each node in that list, and the end
  std::span<const uint32_t> inputs(uint32_t node) const {
    return std::span(in).subspan(first_in[node], first_in[node + 1] - first_in[node]);
  }
  uint32_t output(uint32_t node, size_t i) const { return nodes[node]->slot + uint32_t(i); }
  uint32_t find(uint32_t slot);  // of its group
};

// What may be switched off, to find the pass that is to blame: TG_PASSES=-merge,-fuse ...
enum Pass : uint32_t {
  kMerge = 1,    // nodes that compute the same run once
  kFuse = 2,     // pointwise ops run together, tile by tile
  kInPlace = 4,  // results take over the storage of what is read for the last time
  kArena = 8,    // temporaries lie in one block, at offsets chosen in advance
  kAllPasses = 15
};
uint32_t enabled_passes();

struct Step {
  std::vector<uint32_t> nodes;  // more than one: a chain
  uint32_t twin = kNone;        // a node that has run and whose results are this one's too
  std::vector<Donors> donors;   // per node, as in evaluate.h
  ChainPlan chain;              // of several nodes
};
struct Plan {
  std::vector<Step> steps;
  std::vector<Place> places;      // per slot
  std::vector<uint8_t> has_twin;  // per node: a later step asks for its results
  struct Arena {
    Device device;
    size_t bytes = 0, live = 0;  // live: of what lies in it, at the step when that is most
  };
  std::vector<Arena> arenas;
};

Graph collect(Inputs roots);  // plan.cpp: the nodes that have yet to run
// Numbers their values. The key holds structure (ops, keys, edges, layouts of leaves) and liveness (who is held from
// outside): both decide what a plan may do.
Key number(Graph&);
Plan make_plan(Graph&, uint32_t passes);             // passes.cpp
void place_results(Graph&, Plan&, uint32_t passes);  // places.cpp: a part of it
void dump(const Graph&, const Plan&);  // to the folder of the environment variable TG_DUMP_PLANS, if it is set

}  // namespace tg::detail
