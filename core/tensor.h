/// @file
/// Tensor: a cheap handle to a Variable (identity: id, grad flag, label, hooks), which points at an immutable Value
/// (Layout + Storage, or Layout + the Node that will make it). Nodes capture Values, so assign() only repoints the
/// Variable and pending readers keep what they read. No Eigen, no CUDA, no op names here; ops are in ops/ops.h.
#pragma once
#include <tapegrad/core/backend.h>
#include <tapegrad/core/layout.h>
#include <tapegrad/core/ref.h>
#include <tapegrad/core/small_vec.h>

#include <functional>
#include <iosfwd>
#include <span>
#include <vector>

namespace tg {

/// Bytes on a device. Every view of them shares the version, which goes up with each write that is not an op's.
struct Storage : Counted<Storage> {
  Allocator& allocator;
  std::byte* data;
  size_t bytes;
  uint32_t version = 0;
  const Ref<Storage> within;  ///< whose bytes these are a part of; empty: its own
  Storage(Device, size_t bytes);
  Storage(Ref<Storage> within, size_t offset, size_t bytes);
  ~Storage();
};

struct Node;  ///< core/op.h
struct Value : Counted<Value> {
  Layout layout;
  Ref<Storage> storage;  ///< null while lazy
  Ref<Node> producer;    ///< null once run, unless it is the tape
  uint32_t index = 0;    ///< which output of producer
  uint32_t version = 0;  ///< of the storage, when an op made it
  explicit Value(const Layout&);
  ~Value();
};

class Tensor;
using Hook = std::function<Tensor(const Tensor& grad)>;  ///< returns a new gradient, or an empty Tensor to keep it
struct Hooks : Counted<Hooks> {
  std::vector<Hook> list;
};

struct Variable : Counted<Variable> {
  uint64_t id;  ///< never reused; the key of gradients
  Ref<Value> value;
  const std::string* label = nullptr;
  Ref<Hooks> hooks;
  Ref<Value> origin;  ///< of a value that was computed again: what it stands for, whose producer is the tape's
  bool requires_grad, recorded = false;  ///< recorded: a node of the tape reads it
  Variable(uint64_t i, Ref<Value> v, bool grad) : id(i), value(std::move(v)), requires_grad(grad) {}
};

class Tensor {
 public:
  Tensor() = default;  ///< no value: false as a bool; every use but assignment is an Error
  explicit Tensor(Ref<Variable> v) : var_(std::move(v)) {}
  explicit Tensor(Ref<Value> v);  ///< a fresh leaf
  explicit operator bool() const { return bool(var_); }

  const Layout& layout() const { return var().value->layout; }
  const Shape& shape() const { return layout().shape; }
  int64_t size(int64_t dim) const { return shape()[normal_dim("size", dim, shape())]; }
  size_t ndim() const { return shape().size(); }
  DType dtype() const { return layout().dtype; }
  Device device() const { return layout().device; }
  int64_t numel() const { return layout().numel(); }
  const Strides& strides() const { return layout().strides; }  ///< in elements
  bool is_contiguous() const { return layout().is_contiguous(); }
  uint64_t id() const { return var().id; }
  bool materialised() const { return bool(var().value->storage); }  ///< false while lazy
  bool requires_grad() const { return var_ && var_->requires_grad; }
  Tensor& requires_grad_(bool on = true);  ///< leaves only
  Tensor& label(std::string_view text);    ///< shown in errors, dumps and profiles
  std::string_view label() const { return var().label ? std::string_view(*var_->label) : std::string_view(); }

  /// The elements where they lie: evaluates, checks the dtype, wants contiguous data in the host's memory; a tensor of
  /// a GPU is an Error.
  template <class T> const T* data() const { return static_cast<const T*>(read(dtype_of<T>())); }
  /// The same for writing; a tape or a pending op that needs the old value will find out and throw.
  template <class T> T* mutable_data() {
    void* p = read(dtype_of<T>());
    ++var().value->storage->version;
    return static_cast<T*>(p);
  }
  /// As data(), of any device: a pointer to hand to CUDA, whose work must be ordered after what is queued
  /// (synchronize()).
  template <class T> const T* device_data() const { return static_cast<const T*>(elements(dtype_of<T>())); }
  /// Copies to the host, in row-major order, cast to T; from any layout, dtype and device.
  template <class T> std::vector<T> to_vector() const;
  template <class T> T item() const;  ///< of a tensor with one element

  Tensor to(DType) const;  ///< itself when nothing changes; differentiable, as is contiguous()
  Tensor to(Device) const;
  Tensor contiguous() const;

  Tensor detach() const;             ///< the same value off the tape: the only way to cut a graph
  void assign(const Tensor&) const;  ///< repoints the Variable; nothing is evaluated or copied
  /// Called when its gradient is complete, by the ops that read it from now on; so an intermediate that an op has read
  /// already is an Error.
  void on_grad(Hook);

  const Ref<Variable>& variable() const { return var_; }
  const Ref<Value>& value() const { return var().value; }

 private:
  Variable& var() const {
    if (!var_) [[unlikely]]
      fail_empty();
    return *var_;
  }
  [[noreturn]] static void fail_empty();
  void* read(DType) const;
  void* elements(DType) const;
  void copy_to_host(void* to, DType) const;
  Ref<Variable> var_;
};
std::string describe(const Tensor&);   ///< for messages: 'label' (2, 3) f32
std::string to_string(const Tensor&);  ///< values, rounded to 4 digits, long dimensions cut, and what describe() says
std::ostream& operator<<(std::ostream&, const Tensor&);  ///< to_string

using Inputs = std::span<const Tensor>;
using Tensors = SmallVec<Tensor, 3>;

/// Contiguous, of the shape, dtype and device of x: what most ops make.
inline Layout contiguous_like(const Tensor& x) { return Layout::contiguous(x.shape(), x.dtype(), x.device()); }
uint64_t next_ids(uint64_t n = 1);  ///< process-wide, never reused
Tensor empty(const Layout&);        ///< a leaf whose bytes are not set
/// A copy of host data of `shape`; an Error when the counts differ.
Tensor from_bytes(std::span<const std::byte>, const Shape&, DType, Device = {});
template <class T> Tensor tensor(std::span<const T> v, const Shape& shape, Device d = {}) {
  return from_bytes(std::as_bytes(v), shape, dtype_of<T>(), d);
}
template <class T> Tensor tensor(const std::vector<T>& v, const Shape& shape, Device d = {}) {
  return tensor(std::span<const T>(v), shape, d);
}
template <class T> Tensor tensor(std::initializer_list<T> v, const Shape& shape, Device d = {}) {
  return tensor(std::span<const T>(v.begin(), v.size()), shape, d);
}

}  // namespace tg

/// describe()
template <> struct fmt::formatter<tg::Tensor> : tg::PlainFormatter {
  template <class C> auto format(const tg::Tensor& t, C& c) const { return write(tg::describe(t), c); }
};

namespace tg {
template <class T> std::vector<T> Tensor::to_vector() const {
  static_assert(!std::is_same_v<T, bool>, "std::vector<bool> is no array: read to_vector<uint8_t>()");
  std::vector<T> v(static_cast<size_t>(numel()));
  copy_to_host(v.data(), dtype_of<T>());
  return v;
}
template <class T> T Tensor::item() const {
  TG_CHECK(numel() == 1, shape, "[item] {} has {} elements. Only a tensor with one element is a number.", *this,
           numel());
  T x;
  copy_to_host(&x, dtype_of<T>());
  return x;
}
}  // namespace tg
