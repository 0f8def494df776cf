/// @file
/// Node: one use of an op, in the lazy graph and on the tape, with its inputs (Edge) and outputs (Out). Also the node
/// that a thread runs now, and the engine's counters. For the engine and autograd/; authors of ops need core/op.h only.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

/// An input of a Node: its value until the node has run, or while backward needs it, and what backward needs to pass a
/// gradient on.
struct Edge {
  uint64_t id;
  Ref<Value> value;
  Ref<Node> producer;  ///< set only on the tape: the node to which the gradient goes
  Ref<Hooks> hooks;
  const std::string* label;
  Shape shape;  ///< a gradient has this shape even when the data is gone
  DType dtype;
  bool tracked;  ///< whether this input needs a gradient; exact, unlike a Mask, from input 31 on
  uint32_t version;
};
/// An output of a Node.
struct Out {
  Layout layout;
  Value* live;         ///< the value, if it still exists; not owned, and cleared by ~Value
  Ref<Storage> saved;  ///< the elements, if backward needs them
  uint32_t version;
  Ref<Value> recomputed = nullptr;  ///< the value computed again, while backward needs it
};
/// One use of an op: an element of the lazy graph until it has run, and of the tape while backward may read it.
struct Node : Counted<Node> {
  OpPtr op;
  const Scope* scope;
  const Scope* range = nullptr;  ///< the named ranges that it was made in, for profiles; null if there are none
  uint64_t seq;                  ///< larger than that of every node it reads: a topological order (Lamport clock)
  uint64_t first_id;             ///< the id of output 0; the ids of the others follow
  SmallVec<Edge, 2> in;
  SmallVec<Out, 1> out;
  Mask tracked = 0;  ///< inputs that need a gradient; 0 if the node is not on the tape
  /// What a RecomputeScope decided.
  struct Recomputing {
    Mask in = 0;        ///< inputs that are not kept, because their producers can recompute them
    Mask out = 0;       ///< outputs that this node can recompute
    Mask reads = 0;     ///< inputs that this node needs to recompute
    uint8_t depth = 0;  ///< the longest chain of ops that computes one of them again
  } recomputing;
  bool is_recomputation = false;  ///< computes what another node has computed before
  bool done = false, released = false;
  uint32_t slot = 0;  ///< scratch of the planner and of backward: one graph belongs to one thread at a time
  uint64_t mark = 0;
  Node* next_dead = nullptr;
  const std::string* error = nullptr;
  /// Whether backward may still go through the node.
  bool tape() const { return tracked && !released; }
  uint64_t id(size_t output) const { return first_id + output; }
  /// The inputs that are kept for backward.
  Mask kept_inputs() const;
  /// Drops what was saved, after backward.
  void release();
  /// Drops recomputed outputs, once all their readers have run backward.
  void drop_recomputed();
  /// Frees a chain of nodes without recursion, so that it may be 10^6 long.
  static void dispose(const Node*);
};

inline Mask Node::kept_inputs() const {
  return tape() ? (op->saves_in(tracked) | recomputing.reads) & ~recomputing.in : 0;
}

/// The node that the calling thread runs now, for messages about memory.
struct Running {
  std::string_view op = {};
  const Scope* scope = nullptr;
  const Scope* range = nullptr;  ///< the named ranges that the node was made in (Node::range)
};
/// The node that the calling thread runs now; `op` is empty if there is none.
const Running& running();

/// Counters of the calling thread since it started, for tests and benchmarks.
struct EngineStats {
  uint64_t evaluations,    ///< calls of evaluate() that had something to run
      nodes,               ///< nodes that these calls ran
      kernels,             ///< kernels that ran, those of eager ops included
      plans,               ///< plans that evaluate() and compiled functions made
      replays,             ///< runs of a plan that was made before
      planned_bytes,       ///< bytes of memory that the plans reserve, summed over all plans
      planned_live_bytes;  ///< bytes of that memory in use at its fullest, summed over all plans
};
/// The counters of the calling thread. The reference stays valid while the thread lives.
const EngineStats& engine_stats();

}  // namespace tg
