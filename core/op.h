/// @file
/// Op (what to compute), emit() and eval() (the only way to make and run a value), and the registration of kernels.
/// Op authors need only this header.
#pragma once
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/scope.h>
#include <tapegrad/core/tensor.h>

#include <array>
#include <concepts>
#include <initializer_list>
#include <memory>
#include <vector>

namespace tg {

/// A set of inputs or outputs of an op: bit i is number i; bit 31 is all numbers >= 31.
using Mask = uint32_t;
/// Set of these numbers.
template <std::integral... I> constexpr Mask mask_of(I... i) {
  return ((Mask(1) << (size_t(i) < 31 ? size_t(i) : 31)) | ... | 0u);
}

/// A 128-bit structural hash of an op's attributes or a whole plan.
struct StructuralHash {
  uint64_t a = 0x9e3779b97f4a7c15, b = 0xc2b2ae3d27d4eb4f;
  template <std::integral T> void add(T x) {
    a = (a ^ uint64_t(x)) * 0xff51afd7ed558ccd;
    a ^= a >> 32;
    b = (b + uint64_t(x)) * 0x9fb21c651e98df25;
    b ^= b >> 29;
  }
  void add(const void* p) { add(uint64_t(reinterpret_cast<uintptr_t>(p))); }
  void add(double x) { add(std::bit_cast<uint64_t>(x)); }
  void add(const Dims& d) {
    add(uint64_t(d.size()));
    for (int64_t x : d) add(x);
  }
  bool operator==(const StructuralHash&) const = default;
};
/// StructuralHash's hash for std::unordered_map.
struct StructuralHasher {
  size_t operator()(const StructuralHash& k) const { return k.a; }
};

namespace detail {
[[noreturn]] void fail_buf_dtype(const Layout&, DType read_as);
[[noreturn]] void fail_buf_size(const Layout&, size_t bytes);
}  // namespace detail
/// A kernel's view of a value.
struct Buf {
  const Layout* layout;
  std::byte* bytes;
  /// First element; strides give the others. An Error unless T is the dtype.
  template <class T> [[gnu::always_inline]] T* data() const {
    if (layout->dtype != dtype_of<std::remove_const_t<T>>()) [[unlikely]]
      detail::fail_buf_dtype(*layout, dtype_of<std::remove_const_t<T>>());
    return reinterpret_cast<T*>(bytes) + layout->offset;
  }
  /// The first element as U of the same size, for kernels that move elements; else an Error.
  template <class U> [[gnu::always_inline]] U* raw() const {
    if (size_of(layout->dtype) != sizeof(U)) [[unlikely]]
      detail::fail_buf_size(*layout, sizeof(U));
    return reinterpret_cast<U*>(bytes) + layout->offset;
  }
  const Shape& shape() const { return layout->shape; }
  const Strides& strides() const { return layout->strides; }
  int64_t size(size_t dim) const { return layout->shape[dim]; }
  DType dtype() const { return layout->dtype; }
  int64_t numel() const { return layout->numel(); }
  bool is_contiguous() const { return layout->is_contiguous(); }
};
/// Inputs or outputs of a kernel.
using Bufs = std::span<const Buf>;
namespace detail {
// Checks of for_each and for_each_row (cpu/kernel.h, cuda/kernel.h).
void check_elements(Bufs in, const Buf& out);
void check_rows(Bufs in, const Buf& out);
}  // namespace detail
/// The device of a kernel call, and memory for its duration.
struct Context {
  Device device;
  std::string_view op;  ///< op name, for launch errors
  Context() = default;
  Context(Device d, std::string_view name) : device(d), op(name) {}
  ~Context() {
    if (scratch_) [[unlikely]]
      release();
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  /// Memory for intermediate results: uninitialised, on the device, 64-byte aligned (256 on CUDA); null for 0 elements.
  /// It is valid until the kernel returns, and on CUDA for all its work in stream(); recorded kernels keep it. Only
  /// the thread that runs the kernel may call it. An Error when memory is exhausted.
  /// @{
  void* scratch(size_t bytes);
  template <class T> T* scratch(int64_t elements) {
    if (elements < 0 || elements > INT64_MAX / int64_t(sizeof(T))) [[unlikely]]
      fail_scratch(elements);
    return static_cast<T*>(scratch(size_t(elements) * sizeof(T)));
  }
  /// @}
  /// The cudaStream_t where a kernel must queue its work, null on the CPU. It is the calling thread's current
  /// stream; do not keep it.
  void* stream() const;

 private:
  struct Scratch;
  [[noreturn]] void fail_scratch(int64_t elements) const;
  void release();
  Scratch* scratch_ = nullptr;
};
/// Layouts of an op's outputs.
using Layouts = SmallVec<Layout, 3>;

/// How the engine runs an op. Adjacent pointwise ops can be one kernel; views run none.
enum class OpKind : uint8_t { opaque, pointwise, view };
/// An op's optional properties.
struct Traits {
  OpKind kind = OpKind::opaque;
  /// Inputs whose storage an output of equal layout may reuse. The kernel reads element i before it writes it.
  Mask may_alias = 0;
  /// Output k may reuse the storage of input k and no other, under may_alias's rule; may_alias is ignored. For ops on
  /// lists of tensors.
  bool updates_in_place = false;
  /// The op draws random numbers, or key() lacks attributes: equal inputs and keys are never merged.
  bool dynamic_attributes = false;
  /// AnomalyScope accepts infinite outputs.
  bool may_be_infinite = false;
  /// The op exchanges data with other processes, which call it in the same order. Lazy and compiled programs never
  /// merge such ops, and run them in the order of emit(), each as soon as all earlier ops ran.
  bool communicates = false;
  /// The kernel returns while its work still uses inputs and outputs. Another op finishes it, and reads all of them, so
  /// that memory stays allocated. A run that fails in between calls detail::wait_for_async().
  bool asynchronous = false;
  /// Costs about as much as reading the inputs: RecomputeScope recomputes it. Implied for pointwise ops.
  bool cheap_to_recompute = false;
};

/// A pointwise op as device code, for chains compiled to one kernel (cuda/jit/chain.h).
struct Expression {
  /// A C++ expression: $0, $1 and $2 are the inputs, \#0 and \#1 the numbers. It depends only on what key() hashes, and
  /// is never freed. Empty: none.
  std::string_view text = {};
  /// Values of \#0 and \#1, saturated to the dtype of input 0. They may change each step.
  std::array<double, 2> numbers = {};
  /// Works on stored elements; otherwise bf16 becomes f32 before and bf16 after.
  bool bitwise = false;
};

/// A set of dtypes, for an op's inputs: `static constexpr DTypes kDTypes{DType::f32, DType::f64};`.
class DTypes {
 public:
  constexpr DTypes() = default;
  constexpr DTypes(std::initializer_list<DType> list) {
    for (const DType d : list) bits_ = uint16_t(bits_ | 1 << int(d));
  }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool contains(DType d) const { return bits_ >> int(d) & 1; }

 private:
  uint16_t bits_ = 0;
};

/// The minimal work of one run of an op.
struct OpWork {
  int64_t read = 0, written = 0;  ///< bytes of distinct elements
  double multiply_adds = 0;       ///< matrix products; masked elements excluded
};
class WorkScope;
namespace detail {
extern constinit thread_local WorkScope* t_work;  // core/profile/work.h; null: not counted
}  // namespace detail

struct Edge;  // core/node.h
class Vjp;
struct Op;
struct Rng;
/// A shared, immutable op.
using OpPtr = Ref<const Op>;
/// An operation; members are its attributes, constant after emit(). Authors derive from OpOf.
///
/// vjp() returns one gradient per input, or an empty Tensor where none is wanted. It may return its argument, but never
/// writes into a gradient: the engine accumulates, except into what Vjp::take_accumulated() gave. An op without vjp()
/// is differentiated through compose(), so gradient ops have second derivatives.
struct Op : Counted<Op> {
  const bool has_vjp, composes;  ///< overrides vjp(), compose()
  const DTypes dtypes;           ///< inputs' dtypes; empty: infer() checks them
  Op(bool own_vjp, bool own_compose, DTypes d = {}) : has_vjp(own_vjp), composes(own_compose), dtypes(d) {}
  virtual ~Op() = default;
  /// Name in messages, listings and profiles: "layer_norm".
  virtual std::string_view name() const = 0;
  /// Outputs' layouts. The only check of shapes and dtypes; it throws Errors.
  virtual Layouts infer(Inputs) const = 0;
  /// Gradients of the inputs, given those of the outputs. The default throws "[name] has no gradient".
  virtual Tensors vjp(const Vjp&) const;
  /// The same outputs by simpler ops, for backends without a kernel and for gradients without vjp().
  virtual Tensors compose(Inputs) const;
  virtual Traits traits() const { return {}; }
  /// Inputs that vjp() reads. `tracked`: those that need a gradient. A forgotten bit is an Error at the first backward.
  virtual Mask saves_in(Mask /*tracked*/) const { return 0; }
  /// Outputs that vjp() reads.
  virtual Mask saves_out(Mask /*tracked*/) const { return 0; }
  /// Inputs of recompute() for output k, next to saves_out(tracked). 0: output k is saved. Default: all if the op is
  /// cheap.
  virtual Mask recomputes_from(size_t k, Mask tracked) const;
  /// Computes output k again, bit for bit, in backward of a RecomputeScope. Default: runs the op.
  virtual Tensor recompute(const Vjp&, size_t k) const;
  /// Hashes the attributes, except those that change every step (Traits::dynamic_attributes).
  virtual void key(StructuralHash&) const {}
  /// Hashes attributes that replays take from the trace, for CompileOptions::verify. Default: key() and the
  /// expression's numbers.
  virtual void replay_key(StructuralHash& k) const {
    key(k);
    for (const double x : expression().numbers) k.add(x);
  }
  virtual Expression expression() const { return {}; }
  /// Minimal work of a run, without reading elements. Default: inputs, outputs, multiply_adds().
  virtual OpWork work(Bufs in, Bufs out) const;
  virtual double multiply_adds(Bufs /*in*/, Bufs /*out*/) const { return 0; }  ///< OpWork::multiply_adds
  /// Bytes of Context::scratch() of a run on the CPU, for dry_run().
  virtual int64_t scratch_bytes(Bufs /*in*/, Bufs /*out*/) const { return 0; }
  /// Generator state of a random op, else null.
  virtual const Rng* rng_state() const { return nullptr; }
  /// A copy for a compiled function's next call, with this generator state or the next step number; null: unchanged.
  virtual OpPtr for_next_step(const Rng& /*rng*/) const;
  /// Undoes this op's counts on the host after a failed call.
  virtual void undo_step() const {}
  /// A pointer that identifies the op's struct. OpOf defines it.
  virtual const void* type() const = 0;
  /// Whether the op has a kernel on a backend. OpOf defines it.
  virtual bool supports(Backend) const = 0;
  /// Calls the kernel of context.device. OpOf defines it.
  virtual void run(Bufs in, Bufs out, Context&) const = 0;
};

/// Values for Op::vjp(): output gradients, saved (or recomputed) inputs and outputs, shapes. An Error if a value was
/// not saved or was written since.
class Vjp {
 public:
  /// Input gradients so far. take() returns and clears one if it has this dtype.
  struct Accumulators {
    virtual Tensor take(const Edge&, DType) = 0;

   protected:
    ~Accumulators() = default;
  };
  /// A node's view. `last`: may give saved values away.
  explicit Vjp(Node&, Inputs grads, bool last = false, Accumulators* sums = nullptr);
  /// A view of the first n inputs.
  Vjp first(size_t n) const { return {node_, grads_, last_, sums_, n}; }
  /// Input i; saves_in() must have its bit.
  Tensor in(size_t i) const;
  /// Input i, given up if possible so that an op can reuse its memory.
  Tensor donate_in(size_t i) const;
  /// Output i; saves_out() must have its bit.
  Tensor out(size_t i) const;
  /// Output i's gradient or empty.
  const Tensor& grad(size_t i = 0) const { return grads_[i]; }
  size_t inputs() const { return inputs_; }
  const Shape& in_shape(size_t i) const;
  DType in_dtype(size_t i) const;
  Device device() const;
  bool wants(size_t i) const;
  /// Input i's gradient so far if of this dtype, else empty. vjp() adds to it and returns the sum: saves a pass where
  /// few elements change.
  Tensor take_accumulated(size_t i, DType dtype) const;

 private:
  Vjp(Node& n, Inputs grads, bool last, Accumulators* sums, size_t inputs)
      : node_(n), grads_(grads), sums_(sums), last_(last), inputs_(inputs) {}
  Node& node_;
  Inputs grads_;
  Accumulators* sums_;
  bool last_;
  size_t inputs_;
};

/// Calls an op: checks inputs, makes a Node, runs it unless lazy.
Tensors emit(OpPtr, Inputs);
namespace detail {
/// emit() that drops the handles in `in` first: the op may overwrite inputs without other owners (Traits::may_alias).
Tensors emit_donating(OpPtr, std::vector<Tensor> in);
/// Calls an op whose output k becomes input k's value for k < n, in place if the old one has no readers. Not on the
/// tape.
void emit_update(OpPtr, Inputs, size_t n);
}  // namespace detail
/// Computes lazy tensors and their dependencies.
void eval(Inputs roots);
/// emit()'s first output.
inline Tensor emit1(OpPtr op, Inputs in) { return std::move(emit(std::move(op), in)[0]); }
inline OpPtr Op::for_next_step(const Rng&) const { return nullptr; }
/// An attribute-free op's single object, never freed or counted: no contention.
template <class OpT> const OpPtr& stateless() {
  static const OpPtr op = [] {
    auto* p = new OpT;
    p->refs = OpT::kImmortal;
    return OpPtr(p);
  }();
  return op;
}

/// Kernels of one op by backend. TG_KERNEL fills the table before main().
template <class Self> struct Kernels {
  using Fn = void (*)(const Self&, Bufs in, Bufs out, Context&);
  static inline constinit std::array<KernelSlot, kBackends> table{};
};
namespace detail {
/// Registers a kernel before main(), in scalar registers only: the machine may lack the file's level.
template <class OpT, Backend B, typename Kernels<OpT>::Fn F> bool add_kernel(const KernelOrigin& origin) {
  return register_kernel(OpT::kName, Kernels<OpT>::table[size_t(B)], B, reinterpret_cast<AnyKernel>(F), origin);
}
[[noreturn]] void fail_no_kernel(const Op&, Backend);
}  // namespace detail

#define TG_CAT_(a, b) a##b
#define TG_CAT(a, b) TG_CAT_(a, b)
#define TG_ADD_KERNEL_(OpT, backend, fn, strided, id)                                                 \
  static constexpr ::tg::KernelOrigin TG_CAT(kOrigin, id){__FILE__, __LINE__, TG_ISA_LEVEL, strided}; \
  [[maybe_unused]] static const bool TG_CAT(kernel_, id) =                                            \
      ::tg::detail::add_kernel<OpT, ::tg::Backend::backend, fn>(TG_CAT(kOrigin, id))
/// Registers `fn` as the kernel of an op on a backend, at namespace scope of a kernel file:
/// TG_KERNEL(op::LayerNorm, cpu, layer_norm); The engine makes inputs contiguous.
#define TG_KERNEL(OpT, backend, fn) TG_ADD_KERNEL_(OpT, backend, fn, false, __COUNTER__)
#define TG_ADD_KERNELS_(List, OpT, backend, fn, id)                                                     \
  static constexpr ::tg::KernelOrigin TG_CAT(kOrigin, id){__FILE__, __LINE__, TG_ISA_LEVEL, true};      \
  [[maybe_unused]] static const bool TG_CAT(kernels_, id) = []<class... F>(::tg::op::TypeList<F...>) {  \
    return (::tg::detail::add_kernel<OpT<F>, ::tg::Backend::backend, fn<F>>(TG_CAT(kOrigin, id)), ...); \
  }(List{})
/// TG_KERNEL() for a kernel that reads any Buf::strides(), 0 included.
#define TG_STRIDED_KERNEL(OpT, backend, fn) TG_ADD_KERNEL_(OpT, backend, fn, true, __COUNTER__)
/// TG_STRIDED_KERNEL(OpT<F>, backend, fn<F>) for each F of an op::TypeList.
#define TG_STRIDED_KERNELS(List, OpT, backend, fn) TG_ADD_KERNELS_(List, OpT, backend, fn, __COUNTER__)

namespace detail {
// Inputs, copied if not contiguous.
class ContiguousInputs {
 public:
  ContiguousInputs(Bufs in, Context&);
  ~ContiguousInputs();
  ContiguousInputs(const ContiguousInputs&) = delete;
  Bufs bufs() const { return in_; }

 private:
  struct Copies;
  Bufs in_;
  std::unique_ptr<Copies> copies_;
};
}  // namespace detail

/// Base of every op: `struct LayerNorm : OpOf<LayerNorm>`, with a static kName. Registers the op and finds kernels.
template <class Self> struct OpOf : Op {
  static constexpr bool kView = false;
  std::string_view name() const override { return Self::kName; }
  const void* type() const final { return &Kernels<Self>::table; }
  bool supports(Backend b) const final { return Kernels<Self>::table[size_t(b)].fn != nullptr; }
  Mask saves_in(Mask) const override { return overrides_compose() && !overrides_vjp() ? ~Mask(0) : 0; }
  void run(Bufs in, Bufs out, Context& c) const final {
    const KernelSlot& slot = Kernels<Self>::table[size_t(c.device.backend)];
    auto fn = reinterpret_cast<typename Kernels<Self>::Fn>(slot.fn);
    if (!fn) [[unlikely]]
      detail::fail_no_kernel(*this, c.device.backend);
    if (slot.strided) return fn(static_cast<const Self&>(*this), in, out, c);
    const detail::ContiguousInputs dense(in, c);
    fn(static_cast<const Self&>(*this), dense.bufs(), out, c);
  }

 protected:
  OpOf() : Op(overrides_vjp(), overrides_compose(), dtypes_of_inputs()) { (void)listed_; }

 private:
  static constexpr DTypes dtypes_of_inputs() {
    if constexpr (requires { Self::kDTypes; }) return Self::kDTypes;
    return {};
  }
  static constexpr bool overrides_vjp() {
    return !std::is_same_v<decltype(&Self::vjp), Tensors (Op::*)(const Vjp&) const>;
  }
  static constexpr bool overrides_compose() {
    return !std::is_same_v<decltype(&Self::compose), Tensors (Op::*)(Inputs) const>;
  }
  static OpInfo info() { return {Self::kName, overrides_vjp(), overrides_compose(), Self::kView}; }
  static inline const bool listed_ = detail::register_op(info);
};

/// Base of views: infer() returns a Layout on an input's storage (Layout::aliases_input), without a kernel.
template <class Self> struct ViewOp : OpOf<Self> {
  static constexpr bool kView = true;
  Traits traits() const override { return {.kind = OpKind::view}; }
};
/// Base of ops that sum products over input 0's last dimension.
template <class Self> struct ProductOp : OpOf<Self> {
  double multiply_adds(Bufs in, Bufs out) const override {
    return double(out[0].numel()) * double(in[0].shape().back());
  }
};
/// Base of ops along one dimension, their only attribute.
template <class Self> struct AlongDim : OpOf<Self> {
  size_t dim;
  explicit AlongDim(size_t d) : dim(d) {}
  void key(StructuralHash& k) const override { k.add(uint64_t(dim)); }
};

}  // namespace tg
