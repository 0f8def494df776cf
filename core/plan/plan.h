// The nodes of one evaluation, and their plan: which nodes are merged or run together, in what order, and where results
// are stored. A plan depends only on structure, layouts and liveness, so equal graphs reuse it.
#pragma once
#include <tapegrad/core/plan/run_group.h>

#include <optional>
#include <vector>

namespace tg::detail {

inline constexpr uint32_t kNone = ~0u;

struct Slot {          // a value: a leaf, or an output of a node
  const Value* value;  // null without an owner
  const Layout* layout;
  uint32_t node;  // the producer; kNone: a leaf
  // Values that share storage form a group: a union-find forest, see find(). The members below are of the group in its
  // root.
  uint32_t group;
  uint32_t uses = 0;    // by inputs of nodes of the graph
  bool pinned = false;  // held outside or by the tape: its memory is not reused
  // Lifetime of the group, as positions in the plan's steps.
  uint32_t first = kNone, last = 0;
  uint32_t reads = 0;  // by the step that choose_in_place() is at
};
struct Graph {
  std::vector<Ref<Node>> nodes;    // in order of emission
  std::vector<Slot> slots;         // outputs of node n: from nodes[n]->slot on
  std::vector<uint32_t> in;        // slots of all inputs, node by node
  std::vector<uint32_t> first_in;  // of each node in that list, then the end
  std::vector<Ref<Value>> held;    // against other threads
  Ref<Value> running;              // in another thread: stopped there
  std::span<const uint32_t> inputs(uint32_t node) const {
    return std::span(in).subspan(first_in[node], first_in[node + 1] - first_in[node]);
  }
  uint32_t output(uint32_t node, size_t i) const { return nodes[node]->slot + uint32_t(i); }
  uint32_t find(uint32_t slot);  // the root of its group
};

// Passes that TG_PASSES=-cse,-fuse can switch off, to find a faulty one.
enum Pass : uint32_t {
  kCommonSubexpressions = 1,  // merges equal nodes
  kElementwiseFusion = 2,     // pointwise ops run together, tile by tile
  kInPlace = 4,               // results reuse inputs that are read for the last time
  kArena = 8,                 // temporaries are in one block, at planned offsets
  kRewrite = 16,              // replaces several ops by one, by the rules of rewrite.h
  kSchedule = 32,             // reorders steps to take less memory
  kBranches = 64,             // parallel branches, on a device that records runs
  kAllPasses = 127
};
uint32_t enabled_passes();

struct Step {
  std::vector<uint32_t> nodes;    // more than one: a chain, or `replacement`
  uint32_t duplicate_of = kNone;  // an earlier node with the same results
  std::vector<Donors> donors;     // per op (one per node, or `replacement`), see run_node.h
  ChainPlan chain = {};
  std::optional<Replacement> replacement = {};
};

struct Plan {
  std::vector<Step> steps;
  std::vector<BufferSlice> slices;     // per slot
  std::vector<uint8_t> has_duplicate;  // per node: a later step reuses its results
  struct Arena {
    Device device;
    size_t bytes = 0, live = 0;  // live: peak of live bytes
  };
  std::vector<Arena> arenas;
};

// An op that a step runs, with its input and output slots. A temporary of a chain has slot kNone.
struct Operation {
  OpPtr op;
  std::vector<uint32_t> in, out;
  std::vector<const Layout*> layouts;  // of out, as inferred by the op
};
std::vector<Operation> operations(const Graph&, const Step&);  // in the order of Step::donors; passes.cpp

class WritesValues;
// evaluate.cpp: the nodes that have not run. `alone`: checks their users.
Graph collect(Inputs roots, const WritesValues* alone = nullptr);
// Gives each value a slot. The key covers structure (ops, their keys, edges, layouts of leaves) and liveness (pinned
// values): a plan depends on both.
StructuralHash number(Graph&);
Plan make_plan(Graph&, uint32_t passes);              // passes.cpp
void assign_buffers(Graph&, Plan&, uint32_t passes);  // buffer_assignment.cpp
// Nodes that run as one op. Nodes that are `busy` take no part. rewrite.cpp
struct Rewrite {
  std::vector<uint32_t> nodes;  // in order of emission
  Replacement replacement;
};
std::vector<Rewrite> find_rewrites(const Graph&, const std::vector<uint8_t>& busy);
// Topological orders of steps. schedule.cpp
struct Orders {
  std::vector<uint32_t> emitted, compact;
};
Orders orders_of(const Graph&, const std::vector<Step>&);
const char* folder_of_dumps();         // of TG_DUMP_PLANS, created; null if unset
void dump(const Graph&, const Plan&);  // to that folder

}  // namespace tg::detail
