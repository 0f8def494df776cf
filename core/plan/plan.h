// The nodes of one evaluation, and the plan by which they are run: who is merged with whom, what runs together, in
// which order, and where results lie. A plan depends on structure, layouts and liveness alone, so it is kept and used
// again for the next graph that looks the same. For the files of core/plan/; users see
// evaluate().
#pragma once
#include <tapegrad/core/plan/run_group.h>

#include <optional>
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

// What may be switched off, to find the pass that is to blame: TG_PASSES=-cse,-fuse ...
enum Pass : uint32_t {
  kCommonSubexpressions = 1,  // nodes that compute the same run once
  kElementwiseFusion = 2,     // pointwise ops run together, tile by tile
  kInPlace = 4,               // results take over the storage of what is read for the last time
  kArena = 8,                 // temporaries lie in one block, at offsets chosen in advance
  kRewrite = 16,              // several ops run as one, by the rules of rewrite.h
  kSchedule = 32,             // steps run in another order, where that takes less memory
  kBranches = 64,             // what need not wait runs beside the rest, on a device that runs calls as one
  kAllPasses = 127
};
uint32_t enabled_passes();

struct Step {
  std::vector<uint32_t> nodes;    // more than one: a chain, or `replacement`
  uint32_t duplicate_of = kNone;  // a node that has run and whose results are this one's too
  std::vector<Donors> donors;     // per op that runs (one per node, or that of `replacement`), as in run_node.h
  ChainPlan chain = {};
  std::optional<Replacement> replacement = {};
};

struct Plan {
  std::vector<Step> steps;
  std::vector<BufferSlice> slices;     // per slot
  std::vector<uint8_t> has_duplicate;  // per node: a later step asks for its results
  struct Arena {
    Device device;
    size_t bytes = 0, live = 0;  // live: of what lies in it, at the step when that is most
  };
  std::vector<Arena> arenas;
};

// An op that a step runs, with the slots that it reads and makes. A result that lies within a tile has none.
struct Operation {
  OpPtr op;
  std::vector<uint32_t> in, out;
  std::vector<const Layout*> layouts;  // of out, as the op sees them
};
std::vector<Operation> operations(const Graph&, const Step&);  // as its donors are listed; passes.cpp

Graph collect(Inputs roots);  // evaluate.cpp: the nodes that have yet to run
// Numbers their values. The key holds structure (ops, keys, edges, layouts of leaves) and liveness (who is held from
// outside): both decide what a plan may do.
StructuralHash number(Graph&);
Plan make_plan(Graph&, uint32_t passes);              // passes.cpp
void assign_buffers(Graph&, Plan&, uint32_t passes);  // buffer_assignment.cpp: a part of it
// What runs as one op; not nodes that are `busy`. rewrite.cpp
struct Rewrite {
  std::vector<uint32_t> nodes;  // in the order of emission
  Replacement replacement;
};
std::vector<Rewrite> find_rewrites(const Graph&, const std::vector<uint8_t>& busy);
// An order of the steps that lowers peak memory, as indices into `steps`; each comes after those that it reads.
// schedule.cpp
std::vector<uint32_t> memory_aware_order(const Graph&, const std::vector<Step>&);
const char* folder_of_dumps();         // that the environment variable TG_DUMP_PLANS names, made; null: it is not set
void dump(const Graph&, const Plan&);  // to that folder

}  // namespace tg::detail
