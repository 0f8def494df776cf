/// @file
/// Node: one use of an op, in the lazy graph and on the tape, with inputs (Edge) and outputs (Out).
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace detail {
inline constexpr uint32_t kUnset = ~0u;  // version of an input that was lazy when captured
}  // namespace detail

/// An input of a Node: its value until the node ran, or while backward needs it, and its gradient's node.
struct Edge {
  uint64_t id;
  Ref<Value> value;
  Ref<Node> producer;  ///< tape only: node that gets the gradient
  Ref<Hooks> hooks;
  const std::string* label;
  Shape shape;  ///< gradients need it without the data
  DType dtype;
  /// Whether it needs a gradient; exact, unlike Mask from bit 31 on.
  bool tracked;
  uint32_t version;
};
/// An output of a Node.
struct Out {
  Layout layout;
  Value* live;         ///< the existing value; dispose() clears it
  Ref<Storage> saved;  ///< elements that backward needs
  uint32_t version;
  Ref<Value> recomputed = nullptr;  ///< recomputed value that backward needs
};
/// One use of an op, in the lazy graph or on the tape.
struct Node : Counted<Node> {
  OpPtr op;
  const Scope* scope;
  const Scope* range = nullptr;  ///< named ranges at creation, for profiles; or null
  /// Larger than the seq of every node it reads: a topological order (Lamport clock).
  uint64_t seq;
  uint64_t first_id;  ///< output 0's id; others follow
  SmallVec<Edge, 2> in;
  SmallVec<Out, 1> out;
  Mask tracked = 0;  ///< inputs that need a gradient; 0: no tape
  /// A RecomputeScope's decisions.
  struct Recomputing {
    Mask in = 0;        ///< not kept: recomputed by their producers
    Mask out = 0;       ///< recomputable outputs
    Mask reads = 0;     ///< inputs that recomputation reads
    uint8_t depth = 0;  ///< longest recomputed chain of ops
  } recomputing;
  bool is_recomputation = false;  ///< repeats another node's work
  bool done = false, released = false;
  std::atomic<uint32_t> user = 0;  ///< ValueReader::id of the using thread, plus uses
  /// Scratch of that thread.
  uint32_t slot = 0;
  uint64_t mark = 0;
  Node* next_dead = nullptr;
  const std::string* error = nullptr;
  bool tape() const { return tracked && !released; }
  uint64_t id(size_t output) const { return first_id + output; }
  /// Inputs kept for backward.
  Mask kept_inputs() const;
  /// Drops saved values, after backward.
  void release();
  /// Drops recomputed outputs after their last reader.
  void drop_recomputed();
  /// Frees a chain of nodes (up to 10^6) without recursion.
  static void dispose(const Node*);
};

inline Mask Node::kept_inputs() const {
  return tape() ? (op->saves_in(tracked) | recomputing.reads) & ~recomputing.in : 0;
}

/// The node that the thread runs, for messages.
struct Running {
  std::string_view op = {};
  const Scope* scope = nullptr;
  const Scope* range = nullptr;  ///< Node::range
};
/// The node that the thread runs; `op` is empty without one.
const Running& running();

/// The thread's counters, for tests and benchmarks.
struct EngineStats {
  uint64_t evaluations,    ///< eval() calls with work
      nodes,               ///< nodes run by eval()
      kernels,             ///< kernels run, eager ones too
      plans,               ///< plans of eval() and compile()
      replays,             ///< runs of existing plans
      planned_bytes,       ///< reserved bytes, summed over plans
      planned_live_bytes;  ///< peak of used bytes, summed over plans
};
/// Thread's counters, valid during its life.
const EngineStats& engine_stats();

}  // namespace tg
