/// @file
/// Tensor: a cheap handle to a Variable, which has an identity: an id, a gradient flag, a label, hooks. The Variable
/// points at an immutable Value: a Layout with its Storage, or with the Node that will compute it. Nodes hold Values,
/// so assign() only repoints the Variable, and pending readers keep their value.
#pragma once
#include <tapegrad/core/util/small_vec.h>
#include <tapegrad/core/value.h>

#include <functional>
#include <iosfwd>
#include <span>
#include <vector>

namespace tg {

/// An array on a device, as a cheap handle: copies share the Variable. An empty Tensor (default constructed) is false
/// as a bool; every use except assignment throws an Error.
class Tensor {
 public:
  /// An empty Tensor.
  Tensor() = default;
  /// Another handle to a Variable.
  explicit Tensor(Ref<Variable> v) : var_(std::move(v)) {}
  /// A new leaf with this value.
  explicit Tensor(Ref<Value> v);
  explicit operator bool() const { return bool(var_); }

  /// Shape, strides, offset, dtype and device; known also while the tensor is lazy.
  const Layout& layout() const { return var().value->layout; }
  const Shape& shape() const { return layout().shape; }
  /// A dimension's size; negative ones count from the end. An Error outside of [-ndim, ndim).
  int64_t size(int64_t dim) const { return shape()[detail::normal_dim("size", dim, shape())]; }
  size_t ndim() const { return shape().size(); }
  DType dtype() const { return layout().dtype; }
  Device device() const { return layout().device; }
  int64_t numel() const { return layout().numel(); }
  const Strides& strides() const { return layout().strides; }  ///< elements
  bool is_contiguous() const { return layout().is_contiguous(); }
  /// Id of the Variable: unique in the process, kept by assign().
  uint64_t id() const { return var().id; }
  bool materialized() const { return bool(var().value->storage); }  ///< false while lazy
  /// Whether this is a leaf that asks for a gradient, or a result on the tape.
  bool requires_grad() const { return var_ && var_->requires_grad; }
  /// Turns the gradient of this leaf on or off. An Error unless it is a leaf.
  Tensor& requires_grad_(bool on = true);
  /// Names the tensor in errors, dumps and profiles. Each text takes about 80 bytes until the process ends: name
  /// parameters and inputs, not every step's tensors.
  Tensor& label(std::string_view text);
  /// Name set by label(text), or an empty text.
  std::string_view label() const { return var().label ? std::string_view(*var_->label) : std::string_view(); }

  /// Elements in place; evaluates a lazy tensor first. An Error unless T matches the dtype, the layout is
  /// contiguous and the tensor is on the CPU. The pointer is valid while the tensor has this value.
  template <class T> const T* data() const { return static_cast<const T*>(read(dtype_of<T>())); }
  /// Elements for writing, under the rules of data(). Backward passes and pending ops that need the former elements
  /// throw an Error.
  template <class T> T* mutable_data() { return static_cast<T*>(write(dtype_of<T>())); }
  /// Elements as a device pointer, for CUDA code. Evaluates a lazy tensor; an Error unless T matches the dtype and
  /// the layout is contiguous. Kernels may be queued: call synchronize(), or order the work after them.
  template <class T> const T* device_data() const { return static_cast<const T*>(elements(dtype_of<T>())); }
  /// A copy on the host in row-major order, cast to T, from any layout, dtype and device. Waits for the device.
  template <class T> std::vector<T> to_vector() const;
  /// The only element, cast to T; an Error unless there is exactly one. Waits for the device.
  template <class T> T item() const;

  /// Tensor in another dtype; itself if nothing changes. Differentiable.
  Tensor to(DType) const;
  /// Tensor on another device; itself if nothing changes. Differentiable.
  Tensor to(Device) const;
  /// Tensor in row-major order without gaps; itself if nothing changes. Differentiable.
  Tensor contiguous() const;

  /// The same value without history: gradients do not flow through it. No copy. This is the only way to cut a graph.
  Tensor detach() const;
  /// Gives the Variable the value of another tensor. Nothing is evaluated or copied; pending ops keep the value they
  /// read.
  void assign(const Tensor&) const;
  /// Adds a hook, called when backward() completes this tensor's gradient. The gradient has the tensor's dtype, or bf16
  /// for an f32 leaf that is used in bf16. Only later readers see it: an intermediate that an op has read is an Error.
  /// A hook lives as long as its tensor, and must not capture it or an owner: capture detach(), an id or a pointer.
  void on_grad(Hook);

  /// Identity, for the engine.
  const Ref<Variable>& variable() const { return var_; }
  /// Current value, for the engine.
  const Ref<Value>& value() const { return var().value; }

 private:
  Variable& var() const {
    if (!var_) [[unlikely]]
      fail_empty();
    return *var_;
  }
  [[noreturn]] static void fail_empty();
  [[noreturn]] void fail_item() const;
  void* read(DType) const;
  void* write(DType);
  void* elements(DType) const;
  void copy_to_host(void* to, DType) const;
  Ref<Variable> var_;
};
namespace detail {
/// Tensor in a message: 'label' (2, 3) f32.
std::string describe(const Tensor&);
}  // namespace detail
/// Elements with 4 digits, long dimensions abridged, then describe().
std::string to_string(const Tensor&);
/// Prints to_string().
std::ostream& operator<<(std::ostream&, const Tensor&);

/// Inputs of an op: a vector, an array, or a braced list.
class Inputs : public std::span<const Tensor> {
 public:
  using span::span;
  Inputs() = default;
  Inputs(std::span<const Tensor> all) : span(all) {}
  Inputs(std::initializer_list<Tensor> list) : span(list.begin(), list.size()) {}
};
/// Outputs of an op, or gradients; up to three need no allocation.
using Tensors = SmallVec<Tensor, 3>;

/// A function of tensors, for compile() and custom_vjp().
using TensorFunction = std::function<std::vector<Tensor>(Inputs)>;

/// Contiguous, and like x except for what is given.
/// @{
inline Layout contiguous_like(const Tensor& x, const Shape& s, DType t) { return Layout::contiguous(s, t, x.device()); }
inline Layout contiguous_like(const Tensor& x, const Shape& s) { return contiguous_like(x, s, x.dtype()); }
inline Layout contiguous_like(const Tensor& x, DType t) { return contiguous_like(x, x.shape(), t); }
inline Layout contiguous_like(const Tensor& x) { return contiguous_like(x, x.dtype()); }
/// @}
namespace detail {
/// Reserves n consecutive ids for new Variables and returns the first. Never reused. Thread-safe.
uint64_t next_ids(uint64_t n = 1);
/// A new leaf with a copy of host bytes, which are elements of the dtype in row-major order. An Error when their number
/// does not fit the shape.
Tensor from_bytes(std::span<const std::byte>, const Shape&, DType, Device = {});
}  // namespace detail
/// A new leaf of this layout. Its elements are not initialised.
Tensor empty(const Layout&);
/// A new leaf of `shape` with a copy of the host elements v, in row-major order and the dtype of T: f64 for
/// tensor({1.0, 2.0}, {2}), f32 for tensor<float>({1.0, 2.0}, {2}). An Error when their number does not fit the shape.
/// @{
template <class T> Tensor tensor(std::span<const T> v, const Shape& shape, Device d = {}) {
  return detail::from_bytes(std::as_bytes(v), shape, dtype_of<T>(), d);
}
template <class T> Tensor tensor(const std::vector<T>& v, const Shape& shape, Device d = {}) {
  return tensor(std::span<const T>(v), shape, d);
}
template <class T> Tensor tensor(std::initializer_list<T> v, const Shape& shape, Device d = {}) {
  return tensor(std::span<const T>(v.begin(), v.size()), shape, d);
}
/// @}

}  // namespace tg

namespace tg {
template <class T> std::vector<T> Tensor::to_vector() const {
  static_assert(!std::is_same_v<T, bool>, "std::vector<bool> is no array: read to_vector<uint8_t>()");
  std::vector<T> v(static_cast<size_t>(numel()));
  copy_to_host(v.data(), dtype_of<T>());
  return v;
}
template <class T> T Tensor::item() const {
  if (numel() != 1) [[unlikely]]
    fail_item();
  T x;
  copy_to_host(&x, dtype_of<T>());
  return x;
}
}  // namespace tg
