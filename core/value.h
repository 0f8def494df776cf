/// @file
/// The target of a Tensor: a Variable with an identity, and its Value with elements (Storage) or the Node that will
/// compute them. Programs use Tensor (core/tensor.h).
#pragma once
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/layout.h>
#include <tapegrad/core/util/ref.h>

#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace tg {

/// A block of bytes on a device, shared by all views of it.
struct Storage : Counted<Storage> {
  Allocator& allocator;
  std::byte* data;
  size_t bytes;
  uint32_t version = 0;       ///< counts writes outside of ops; a tape compares it
  const Ref<Storage> within;  ///< the block that contains this one, or null
  /// Allocates `bytes` on the device; throws an Error of kind memory if there is no room.
  Storage(Device, size_t bytes);
  /// A part of another block, which it keeps alive.
  Storage(Ref<Storage> within, size_t offset, size_t bytes);
  ~Storage();
};

struct Node;  // core/node.h
/// An immutable value, read and made by Nodes. It is lazy while it has no storage.
struct Value : Counted<Value> {
  Layout layout;
  Ref<Storage> storage;  ///< null while lazy
  Ref<Node> producer;    ///< its op; null once it has run, except on the tape
  uint32_t index = 0;    ///< number of the producer's output
  uint32_t version = 0;  ///< storage version when the op wrote it
  /// Storage version that bf16_copy was made from; kUnset: the version that the op wrote.
  uint32_t bf16_of = 0;
  std::atomic<uint32_t> runner = 0;  ///< ValueReader::id of the computing thread
  bool tracked = false;              ///< keeps its producer
  bool lent = false;                 ///< another thread may own it through Out::live
  bool was_read = false;             ///< a former value, whose layout threads may still read
  Ref<Value> bf16_copy;              ///< bf16 elements of cast_parameter() (core/engine/bf16_copy.h)
  explicit Value(const Layout&);
  Value(const Layout&, Ref<Storage>);  ///< the current elements
  ~Value();
  static void dispose(const Value*);
};

class Tensor;
/// A function of a complete gradient. It returns a new gradient, or an empty Tensor to keep it.
using Hook = std::function<Tensor(const Tensor& grad)>;
/// Hooks of a Variable, in the order of on_grad().
struct Hooks : Counted<Hooks> {
  std::deque<Hook> list;  // stable addresses: a running hook may add another
  std::mutex adding;
};

/// Identity of a tensor, which assign() repoints. `recorded`: a node of the tape reads the value.
struct Variable : Counted<Variable> {
  uint64_t id;  ///< never reused; key of its gradient
  Ref<Value> value;
  const std::string* label = nullptr;
  Ref<Hooks> hooks;
  /// For a recomputed value: the original, whose producer is on the tape.
  Ref<Value> origin;
  bool requires_grad;
  std::atomic<bool> recorded = false;
  std::atomic<bool> updating = false;  ///< a running op will replace it
  Variable(uint64_t i, Ref<Value> v, bool grad) : id(i), value(std::move(v)), requires_grad(grad) {}
};

}  // namespace tg
