/// @file
/// Op (what to compute), Node (one use of it: graph node and tape node in one), emit and evaluate (the only way a value
/// is made and run), and kernel registration. An op author needs this header only; run_node.cpp runs it.
#pragma once
#include <tapegrad/core/mode.h>
#include <tapegrad/core/registry.h>
#include <tapegrad/core/scope.h>
#include <tapegrad/core/tensor.h>

#include <array>
#include <vector>

namespace tg {

/// One bit per input or output; bit 31 stands for 31 and all after it, so lists keep all or none.
using Mask = uint32_t;
constexpr Mask bit(size_t i) { return Mask(1) << (i < 31 ? i : 31); }
template <class... I> constexpr Mask bits(I... i) { return (bit(size_t(i)) | ... | 0u); }

/// 128-bit structural hash: of an op's attributes, and of whole plans
struct StructuralHash {
  uint64_t a = 0x9e3779b97f4a7c15, b = 0xc2b2ae3d27d4eb4f;
  void add(uint64_t x) {
    a = (a ^ x) * 0xff51afd7ed558ccd;
    a ^= a >> 32;
    b = (b + x) * 0x9fb21c651e98df25;
    b ^= b >> 29;
  }
  void add(int64_t x) { add(uint64_t(x)); }
  void add(int x) { add(uint64_t(x)); }
  void add(bool x) { add(uint64_t(x)); }
  void add(const void* p) { add(uint64_t(reinterpret_cast<uintptr_t>(p))); }
  void add(double x) { add(std::bit_cast<uint64_t>(x)); }
  void add(const Dims& d) {
    add(uint64_t(d.size()));
    for (int64_t x : d) add(x);
  }
  bool operator==(const StructuralHash&) const = default;
};

/// What a kernel sees of a value: kernels cannot emit, keep or differentiate anything.
struct Buf {
  const Layout* layout;
  std::byte* bytes;
  template <class T> T* data() const { return reinterpret_cast<T*>(bytes) + layout->offset; }
  const Shape& shape() const { return layout->shape; }
  const Strides& strides() const { return layout->strides; }
  int64_t size(size_t dim) const { return layout->shape[dim]; }
  DType dtype() const { return layout->dtype; }
  int64_t numel() const { return layout->numel(); }
  bool is_contiguous() const { return layout->is_contiguous(); }
};
using Bufs = std::span<const Buf>;
struct Context {
  Device device;
  std::string_view op = {};  ///< its name, for errors of launches
};
/// The node that the calling thread runs now, for messages about memory; empty outside.
struct Running {
  std::string_view op = {};
  const Scope* scope = nullptr;
  const Scope* range = nullptr;  ///< as Node has it
};
const Running& running();
using Layouts = SmallVec<Layout, 3>;

enum class OpKind : uint8_t { opaque, pointwise, view };
struct Traits {
  OpKind kind = OpKind::opaque;
  Mask may_alias = 0;  ///< inputs whose storage an output of equal layout may take over: the kernel reads index i in
                       ///< full before it writes index i
  bool updates_in_place = false;    ///< output k may take over the storage of input k, under the same rule, and of no
                                    ///< other: for lists of any length, where may_alias says nothing
  bool dynamic_attributes = false;  ///< draws random numbers, or has attributes that key() leaves out: uses with equal
                                    ///< inputs and keys may differ, and are never merged
  bool may_be_infinite = false;     ///< infinities in its outputs are meant, and no anomaly
  bool cheap_to_recompute =
      false;  ///< costs about as much as reading its inputs, as pointwise ops do: see RecomputeScope
};

/// How a pointwise op is written in device code, so that a chain of them can be compiled as one kernel
/// (cuda/jit/chain.h): a C++ expression in which $0, $1, $2 stand for its inputs and #0, #1 for its numbers.
struct Expression {
  std::string_view text =
      {};  ///< lives for ever; depends on what key() tells alone. Empty: the op cannot be written so
  std::array<double, 2> numbers = {};  ///< in the dtype of input 0, where they saturate; not in the text, as they may
                                       ///< change every step
  bool bitwise = false;  ///< inputs, numbers and result are elements as they are stored; else bf16 is computed in f32
};

class Vjp;
struct Op;
struct Rng;
using OpPtr = Ref<const Op>;
/// What to compute: attributes are members, immutable once emitted.
/// Contract of gradients: vjp returns gradients (an empty Tensor where none is wanted), which may be the one it was
/// given; it never writes into it and never accumulates. The engine adds, and the first gradient is moved in. An op
/// without a vjp is differentiated through compose(): so gradient ops have second derivatives.
struct Op : Counted<Op> {
  const bool has_vjp, composes;
  Op(bool own_vjp, bool own_compose) : has_vjp(own_vjp), composes(own_compose) {}
  virtual ~Op() = default;
  virtual std::string_view name() const = 0;
  virtual Layouts infer(Inputs) const = 0;  ///< the only place for checks of shapes and dtypes
  virtual Tensors vjp(const Vjp&) const;    ///< default: throws "[name] has no gradient"
  virtual Tensors compose(Inputs) const;    ///< the same outputs out of plainer ops, on any backend
  virtual Traits traits() const { return {}; }
  virtual Mask saves_in(Mask /*tracked*/) const { return 0; }   ///< default: nothing, so a forgotten bit is an error at
  virtual Mask saves_out(Mask /*tracked*/) const { return 0; }  ///< the first backward and never a leak
  /// Of a RecomputeScope: the inputs out of which recompute() makes output k again, to the bit; it may read outputs
  /// that saves_out(tracked) keeps, too. 0: it does not, and whoever saves the output keeps it.
  virtual Mask recomputes_from(size_t k, Mask tracked) const;  ///< default: all, if it is cheap
  virtual Tensor recompute(const Vjp&, size_t k) const;        ///< default: the op once more
  virtual void key(StructuralHash&) const {}                   ///< attributes, except those that change every step
  virtual Expression expression() const { return {}; }         ///< in device code, of a pointwise op
  virtual const Rng* rng_state() const { return nullptr; }     ///< the state from which it draws, if it does
  /// The op in the next run of a compiled function, where attributes change every step: it draws from rng, or counts
  /// on. Null: itself.
  virtual OpPtr for_next_step(const Rng& /*rng*/) const;
  virtual const void* type() const = 0;
  virtual bool supports(Backend) const = 0;
  virtual void run(Bufs in, Bufs out, Context&) const = 0;
};

/// one input of a node: the value until run or while saved, the rest for backward
struct Edge {
  uint64_t id;
  Ref<Value> value;
  Ref<Node> producer;  ///< only if tracked, and only a node that is itself on the tape
  Ref<Hooks> hooks;
  const std::string* label;
  Shape shape;  ///< a gradient has this shape even when the data is gone
  DType dtype;
  bool tracked;  ///< the masks of a node know the inputs from 31 on only together
  uint32_t version;
};
struct Out {
  Layout layout;
  Value* live;  ///< cleared by ~Value: no ownership, no cycle
  Ref<Storage> saved;
  uint32_t version;
  Ref<Value> recomputed = nullptr;  ///< computed again, while a backward needs it
};
struct Node : Counted<Node> {
  OpPtr op;
  const Scope* scope;
  const Scope* range = nullptr;  ///< of named ranges, for profiles; null: none
  uint64_t seq;                  ///< Lamport clock: larger than that of every node it reads, hence a topological order
  uint64_t first_id;             ///< of output 0; the others follow
  SmallVec<Edge, 2> in;
  SmallVec<Out, 1> out;
  Mask tracked = 0;  ///< which inputs need a gradient; 0: not on the tape
  /// in a RecomputeScope
  struct Recomputing {
    Mask in = 0;        ///< inputs that are not kept, because their producers can compute them again
    Mask out = 0;       ///< outputs that it can compute again itself
    Mask reads = 0;     ///< its inputs that this takes
    uint8_t depth = 0;  ///< how many ops at most follow each other to compute one again
  } recomputing;
  bool is_recomputation = false;  ///< computes what another node has computed before
  bool done = false, released = false;
  uint32_t slot = 0;  ///< scratch of the planner and of backward: one graph belongs to one thread at a time
  uint64_t mark = 0;
  Node* next_dead = nullptr;
  const std::string* error = nullptr;
  bool tape() const { return tracked && !released; }
  uint64_t id(size_t output) const { return first_id + output; }
  Mask kept_inputs() const;          ///< for backward
  void release();                    ///< after backward: forgets what was saved
  void drop_recomputed();            ///< what was computed again, when all that read it have run backward
  static void dispose(const Node*);  ///< iterative: a chain of 10^6 nodes ends without recursion
};

/// What a vjp may read, computed again where a RecomputeScope kept nothing; what was not saved, or was changed, throws.
class Vjp {
 public:
  /// `last`: nobody will ask the node again, so what it saved may be given away.
  Vjp(Node& n, Inputs grads, bool last = false) : node_(n), grads_(grads), last_(last) {}
  Tensor in(size_t i) const;
  Tensor donate_in(
      size_t i) const;  ///< in(i), which the node then no longer holds, if it may: its memory can be reused
  Tensor out(size_t i) const;
  const Tensor& grad(size_t i = 0) const { return grads_[i]; }  ///< empty when nothing flowed into output i
  size_t inputs() const { return node_.in.size(); }
  const Shape& in_shape(size_t i) const { return node_.in[i].shape; }
  DType in_dtype(size_t i) const { return node_.in[i].dtype; }
  Device device() const { return node_.out[0].layout.device; }
  bool wants(size_t i) const { return node_.in[i].tracked; }

 private:
  Node& node_;
  Inputs grads_;
  bool last_;
};

Tensors emit(OpPtr, Inputs);
/// The same; the handles are gone before the op runs, so that it may write over a value which nobody else holds.
Tensors emit_donating(OpPtr, std::vector<Tensor> in);
/// Output k becomes the value of input k's Variable (k < n), in place if nobody else reads it. Not recorded.
void emit_update(OpPtr, Inputs, size_t n);
void evaluate(Inputs roots);
inline void evaluate(std::initializer_list<Tensor> roots) { evaluate(Inputs(roots.begin(), roots.size())); }
inline Tensor emit1(OpPtr op, std::initializer_list<Tensor> in) {
  return std::move(emit(std::move(op), Inputs(in.begin(), in.size()))[0]);
}
inline OpPtr Op::for_next_step(const Rng&) const { return nullptr; }
inline Mask Node::kept_inputs() const {
  return tape() ? (op->saves_in(tracked) | recomputing.reads) & ~recomputing.in : 0;
}
/// One immortal object per op without attributes: counts of shared objects would be contended.
template <class OpT> const OpPtr& stateless() {
  static const OpPtr op = [] {
    auto* p = new OpT;
    p->refs = OpT::kImmortal;
    return OpPtr(p);
  }();
  return op;
}

/// Of the calling thread, ever: evaluations of more than nothing, nodes they were of, kernels run, plans made and
/// replayed; of the plans made, bytes of their arenas, and of what lies in them when that is most.
struct EngineStats {
  uint64_t evaluations, nodes, kernels, plans, replays, planned_bytes, planned_live_bytes;
};
const EngineStats& engine_stats();

/// The table of kernels of one op. TG_KERNEL(LayerNorm, cpu, fn) at namespace scope of a kernel file fills it.
template <class Self> struct Kernels {
  using Fn = void (*)(const Self&, Bufs in, Bufs out, Context&);
  static inline constinit std::array<KernelSlot, kBackends> table{};
};
/// Runs before main() in files compiled for processors that this machine may not be: scalars in registers only.
template <class OpT, Backend B, typename Kernels<OpT>::Fn F> bool add_kernel(const KernelOrigin& origin) {
  return register_kernel(OpT::kName, Kernels<OpT>::table[size_t(B)], B, reinterpret_cast<AnyKernel>(F), origin);
}
#define TG_CAT_(a, b) a##b
#define TG_CAT(a, b) TG_CAT_(a, b)
#define TG_KERNEL_ORIGIN \
  static constexpr ::tg::KernelOrigin TG_CAT(kOrigin, __LINE__){__FILE__, __LINE__, TG_ISA_LEVEL};
#define TG_KERNEL(OpT, backend, fn)                              \
  TG_KERNEL_ORIGIN                                               \
  [[maybe_unused]] static const bool TG_CAT(kernel_, __LINE__) = \
      ::tg::add_kernel<OpT, ::tg::Backend::backend, fn>(TG_CAT(kOrigin, __LINE__))

[[noreturn]] void fail_no_kernel(const Op&, Backend);

/// Base of every op: struct LayerNorm : OpOf<LayerNorm> with a static kName, and attributes as members.
template <class Self> struct OpOf : Op {
  static constexpr bool kView = false;
  std::string_view name() const override { return Self::kName; }
  const void* type() const final { return &Kernels<Self>::table; }
  bool supports(Backend b) const final { return Kernels<Self>::table[size_t(b)].fn != nullptr; }
  /// What compose() needs to be differentiated.
  Mask saves_in(Mask) const override { return overrides_compose() && !overrides_vjp() ? ~Mask(0) : 0; }
  void run(Bufs in, Bufs out, Context& c) const final {
    auto fn = reinterpret_cast<typename Kernels<Self>::Fn>(Kernels<Self>::table[size_t(c.device.backend)].fn);
    if (!fn) [[unlikely]]
      fail_no_kernel(*this, c.device.backend);
    fn(static_cast<const Self&>(*this), in, out, c);
  }

 protected:
  OpOf() : Op(overrides_vjp(), overrides_compose()) { (void)listed_; }

 private:
  static constexpr bool overrides_vjp() {
    return !std::is_same_v<decltype(&Self::vjp), Tensors (Op::*)(const Vjp&) const>;
  }
  static constexpr bool overrides_compose() {
    return !std::is_same_v<decltype(&Self::compose), Tensors (Op::*)(Inputs) const>;
  }
  static OpInfo info() { return {Self::kName, overrides_vjp(), overrides_compose(), Self::kView}; }
  static inline const bool listed_ = register_op(info);
};

/// Base of views: a Layout on the input's storage (aliases_input >= 0), no kernel.
template <class Self> struct ViewOp : OpOf<Self> {
  static constexpr bool kView = true;
  Traits traits() const override { return {.kind = OpKind::view}; }
};

}  // namespace tg
