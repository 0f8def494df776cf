// Nodes of an evaluation and their plan. It depends on structure, layouts and liveness: equal graphs reuse it.
#pragma once
#include <tapegrad/core/plan/run_group.h>

#include <optional>
#include <vector>

namespace tg::detail {

inline constexpr uint32_t kNone = ~0u;

struct Slot {          // a leaf or a node's output
  const Value* value;  // null without an owner
  const Layout* layout;
  uint32_t node;  // producer; kNone: leaf
  // Values that share storage: a union-find forest, find(). Members below are the group's, in its root.
  uint32_t group;
  uint32_t uses = 0;    // uses as inputs of the graph
  bool pinned = false;  // held outside or by the tape: no reuse
  // The group's lifetime, as step positions.
  uint32_t first = kNone, last = 0;
  uint32_t reads = 0;  // reads up to choose_in_place()'s step
};
struct Graph {
  std::vector<Ref<Node>> nodes;    // emission order
  std::vector<Slot> slots;         // node n's outputs start at nodes[n]->slot
  std::vector<uint32_t> in;        // input slots, node by node
  std::vector<uint32_t> first_in;  // first input of each node, then the end
  std::vector<Ref<Value>> held;    // keeps values from other threads
  Ref<Value> running;              // value that another thread computes: collect() stopped
  std::span<const uint32_t> inputs(uint32_t node) const {
    return std::span(in).subspan(first_in[node], first_in[node + 1] - first_in[node]);
  }
  uint32_t output(uint32_t node, size_t i) const { return nodes[node]->slot + uint32_t(i); }
  uint32_t find(uint32_t slot);
};

// Passes that TG_PASSES=-cse,-fuse disables, to find a faulty one.
enum Pass : uint32_t {
  kCommonSubexpressions = 1,  // merges equal nodes
  kElementwiseFusion = 2,     // joins pointwise ops, tile by tile
  kInPlace = 4,               // results reuse inputs after their last read
  kArena = 8,                 // one block of temporaries
  kRewrite = 16,              // replaces ops by rewrite.h's rules
  kSchedule = 32,             // orders steps for less memory
  kBranches = 64,             // parallel branches, if the device records runs
  kAllPasses = 127
};
uint32_t enabled_passes();

struct Step {
  std::vector<uint32_t> nodes;    // several: a chain or `replacement`
  uint32_t duplicate_of = kNone;  // earlier node with the same results
  std::vector<Donors> donors;     // indexed by op (node or `replacement`), see run_node.h
  ChainPlan chain = {};
  std::optional<Replacement> replacement = {};
};

struct Plan {
  std::vector<Step> steps;
  std::vector<BufferSlice> slices;     // indexed by slot
  std::vector<uint8_t> has_duplicate;  // indexed by node; a later step reuses its results
  struct Arena {
    Device device;
    size_t bytes = 0, live = 0;  // size; peak of live bytes
  };
  std::vector<Arena> arenas;
};

// A step's op with input and output slots (a chain's temporaries: kNone).
struct Operation {
  OpPtr op;
  std::vector<uint32_t> in, out;
  std::vector<const Layout*> layouts;  // inferred, of the outputs
};
std::vector<Operation> operations(const Graph&, const Step&);  // order of Step::donors

class WritesValues;
// Nodes that have not run. `alone`: an Error for those that another thread uses.
Graph collect(Inputs roots, const WritesValues* alone = nullptr);
// Gives each value a slot. The key has structure (ops, their keys, edges, leaves' layouts) and liveness (pinned
// values).
StructuralHash number(Graph&);
Plan make_plan(Graph&, uint32_t passes);              // passes.cpp
void assign_buffers(Graph&, Plan&, uint32_t passes);  // buffer_assignment.cpp
// Nodes that run as one op, none of them `busy`.
struct Rewrite {
  std::vector<uint32_t> nodes;  // emission order
  Replacement replacement;
};
std::vector<Rewrite> find_rewrites(const Graph&, const std::vector<uint8_t>& busy);
// Topological orders of steps.
struct Orders {
  std::vector<uint32_t> emitted, compact;
};
Orders orders_of(const Graph&, const std::vector<Step>&);
const char* folder_of_dumps();         // TG_DUMP_PLANS, created; null if unset
void dump(const Graph&, const Plan&);  // writes a file into that folder

}  // namespace tg::detail
