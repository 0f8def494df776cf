/// @file
/// Node: one use of an op, in the lazy graph and on the tape, with inputs (Edge) and outputs (Out). Also the node that
/// a thread runs, and the engine's counters. Op authors need only core/op.h.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {
namespace detail {
inline constexpr uint32_t kUnset = ~0u;  // version of an input that was captured lazy
}  // namespace detail

/// An input of a Node: its value until the node has run, or while backward needs it, and the gradient's route.
struct Edge {
  uint64_t id;
  Ref<Value> value;
  Ref<Node> producer;  ///< on the tape only: the node that gets the gradient
  Ref<Hooks> hooks;
  const std::string* label;
  Shape shape;  ///< a gradient has it even without the data
  DType dtype;
  /// Whether this input needs a gradient. A Mask has one bit for all inputs from 31 on; this is exact.
  bool tracked;
  uint32_t version;
};
/// An output of a Node.
struct Out {
  Layout layout;
  Value* live;         ///< the value while it exists; dispose() clears it
  Ref<Storage> saved;  ///< the elements, if backward needs them
  uint32_t version;
  Ref<Value> recomputed = nullptr;  ///< the recomputed value, while backward needs it
};
/// One use of an op: in the lazy graph until it has run, on the tape while backward may read it.
struct Node : Counted<Node> {
  OpPtr op;
  const Scope* scope;
  const Scope* range = nullptr;  ///< named ranges at its creation, for profiles; or null
  /// Larger than seq of every node it reads: a topological order (Lamport clock).
  uint64_t seq;
  uint64_t first_id;  ///< id of output 0; the other ids follow
  SmallVec<Edge, 2> in;
  SmallVec<Out, 1> out;
  Mask tracked = 0;  ///< inputs that need a gradient; 0: not on the tape
  /// The decisions of a RecomputeScope.
  struct Recomputing {
    Mask in = 0;        ///< inputs not kept: their producers recompute them
    Mask out = 0;       ///< outputs that this node can recompute
    Mask reads = 0;     ///< inputs needed to recompute them
    uint8_t depth = 0;  ///< longest chain of ops that recomputes an output
  } recomputing;
  bool is_recomputation = false;  ///< repeats the work of another node
  bool done = false, released = false;
  std::atomic<uint32_t> user = 0;  ///< ValueReader::id of who runs or walks it, plus uses
  /// Scratch of its user.
  uint32_t slot = 0;
  uint64_t mark = 0;
  Node* next_dead = nullptr;
  const std::string* error = nullptr;
  /// Whether backward may still visit the node.
  bool tape() const { return tracked && !released; }
  uint64_t id(size_t output) const { return first_id + output; }
  /// The inputs that are kept for backward.
  Mask kept_inputs() const;
  /// Drops saved values, after backward.
  void release();
  /// Drops recomputed outputs, once all readers have run backward.
  void drop_recomputed();
  /// Frees a chain of nodes without recursion: it may have 10^6 nodes.
  static void dispose(const Node*);
};

inline Mask Node::kept_inputs() const {
  return tape() ? (op->saves_in(tracked) | recomputing.reads) & ~recomputing.in : 0;
}

/// The node that the calling thread runs, for messages about memory.
struct Running {
  std::string_view op = {};
  const Scope* scope = nullptr;
  const Scope* range = nullptr;  ///< named ranges of the node (Node::range)
};
/// The node that the calling thread runs; `op` is empty without one.
const Running& running();

/// Counters of the calling thread, for tests and benchmarks.
struct EngineStats {
  uint64_t evaluations,    ///< calls of eval() with something to run
      nodes,               ///< nodes that these calls ran
      kernels,             ///< kernels that ran, eager ops included
      plans,               ///< plans made by eval() and compile()
      replays,             ///< runs of an existing plan
      planned_bytes,       ///< bytes that the plans reserve, summed over plans
      planned_live_bytes;  ///< peak of used bytes among them, summed over plans
};
/// The counters of the calling thread. The reference is valid while the thread lives.
const EngineStats& engine_stats();

}  // namespace tg
