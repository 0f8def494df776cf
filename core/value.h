/// @file
/// What a Tensor points at: a Variable, which has an identity, and its Value, which has elements (Storage) or the Node
/// that will compute them. For the engine; programs use Tensor (core/tensor.h).
#pragma once
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/layout.h>
#include <tapegrad/core/util/ref.h>

#include <deque>
#include <functional>
#include <string>

namespace tg {

/// A block of bytes on a device, shared by all views of it.
struct Storage : Counted<Storage> {
  Allocator& allocator;
  std::byte* data;
  size_t bytes;
  uint32_t version = 0;       ///< counts the writes that no op made; a tape compares it
  const Ref<Storage> within;  ///< the block that these bytes are a part of; null if they are a block of their own
  /// Allocates `bytes` on the device; throws an Error of kind memory when there is no room.
  Storage(Device, size_t bytes);
  /// A part of another block, which lives at least as long.
  Storage(Ref<Storage> within, size_t offset, size_t bytes);
  ~Storage();
};

struct Node;  // core/node.h
/// An immutable value: what a Node reads and makes. It is lazy while it has no storage.
struct Value : Counted<Value> {
  Layout layout;
  Ref<Storage> storage;  ///< null while lazy
  Ref<Node> producer;    ///< the op that makes it; null once it has run, except on the tape
  uint32_t index = 0;    ///< the producer's output that this is
  uint32_t version = 0;  ///< version of the storage when the op wrote it
  uint32_t bf16_of = 0;  ///< version of the storage that bf16_copy shows; kUnset: the one that the op wrote
  Ref<Value> bf16_copy;  ///< the elements in bf16, if parameter_as() has made them (core/engine/cast.h)
  explicit Value(const Layout&);
  Value(const Layout&, Ref<Storage>);  ///< these elements, as they are now
  ~Value();
};

class Tensor;
/// A function that sees a complete gradient. It returns a new gradient, or an empty Tensor to keep it.
using Hook = std::function<Tensor(const Tensor& grad)>;
/// The hooks of a Variable, in the order in which they were added.
struct Hooks : Counted<Hooks> {
  std::deque<Hook> list;  // a hook that runs stays in its place when it adds another
};

/// The identity of a tensor: what a Tensor points at and assign() changes. `requires_grad` asks for a gradient;
/// `recorded` says that a node of the tape reads the value.
struct Variable : Counted<Variable> {
  uint64_t id;  ///< never reused; gradients are found by it
  Ref<Value> value;
  const std::string* label = nullptr;
  Ref<Hooks> hooks;
  Ref<Value> origin;  ///< for a value that was recomputed: the first one, whose producer is on the tape
  bool requires_grad, recorded = false;
  Variable(uint64_t i, Ref<Value> v, bool grad) : id(i), value(std::move(v)), requires_grad(grad) {}
};

}  // namespace tg
