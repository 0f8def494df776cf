// Running one node: version checks, donation of buffers, the eager fast path, marks for graph walks. For the engine and
// autograd/; op authors read op.h.
#pragma once
#include <tapegrad/core/node.h>

namespace tg::detail {

inline constexpr uint32_t kUnset = ~0u;  // version of an input that was lazy when it was captured

Error with_scope(const Error&, const Scope*);                    // adds "in <path>" once
void check_version(const Node&, size_t i, bool output = false);  // throws when input or output i was written since
void check_version(const Node&, size_t i, const Value& input);
void run_or_evaluate(Node&, Inputs outs);  // eager: one node, no plan
uint64_t next_mark();
bool observing();  // inside an ObserveScope

// What recorded nodes keep for backward: recompute.cpp.
void plan_recomputing(Node&);                  // decides Node::recomputing, inside a RecomputeScope
Ref<Value> recomputed(const Node&, size_t i);  // the value of input i, which is not kept

// op.run() as a Profiler sees it: on the CPU, a call is a kernel.
void run_kernel(const Op&, Bufs in, Bufs out, Context&);
// Returns when the work of asynchronous kernels (Traits::asynchronous) has ended, or on a GPU when the calling thread's
// stream waits for it. It is called before memory of such work is freed or read. on_wait_for_async() adds a function
// that waits for some of it.
void wait_for_async() noexcept;
bool on_wait_for_async(void (*)() noexcept);
std::string shapes_of(Bufs);  // "(4, 512) f32, (512) f32"
EngineStats& mutable_stats();

// What running() says during its life; they nest, where an op evaluates others.
struct NowRunning : ScopedValue<Running> {
  NowRunning(std::string_view op, const Scope* scope, const Scope* range);
};

// During its life, tensors that require a gradient and are read where nothing is recorded are noted.
struct ReadsOfTracked : ScopedValue<std::vector<Tensor>*> {
  explicit ReadsOfTracked(std::vector<Tensor>& to);
};

// Which inputs of a node hold a NaN or an infinity, before its kernel may write over them; afterwards, the Error of
// AnomalyScope for its outputs.
class AnomalyCheck {
 public:
  AnomalyCheck(const Node&, Bufs in);
  void after(Bufs out) const;

 private:
  const Node& node_;
  std::string inputs_;
  bool nan_ = false, infinite_ = false;
};

// Per output: the input whose storage it takes over, or -1.
using Donors = SmallVec<int32_t, 3>;
using OutputStorages = SmallVec<Ref<Storage>, 3>;  // per output
struct BufferSlice {                               // of a result
  static constexpr uint32_t kNone = ~0u;
  uint32_t arena = kNone;  // kNone: storage of its own
  size_t offset = 0;
};
struct BufferAssignment {  // of the outputs of the nodes of an evaluation; none: all have storage of their own
  std::span<const BufferSlice> slots;
  std::span<const Ref<Storage>> arenas;
};
OutputStorages run_node(Node&, const Donors&, const BufferAssignment& = {});
// The parts of run_node(), for nodes that run together.
void check_alive(const Node&);  // throws when it failed before
Ref<Storage> new_storage(const Node&, size_t output, const BufferAssignment&);
Ref<Storage> output_storage(const Node&, size_t output, int32_t donor, const BufferAssignment&);
// Hands the results out, which may be another node's, and lets go of what backward does not need.
void commit_outputs(Node&, const OutputStorages&);
void mark_failed(Node&, const Donors&, const Error& why);
Donors eager_donors(const Node&);
// Chooses among the inputs that the traits allow, of equal shape and dtype, those for which free(i) holds. in(i) and
// out(k) are layouts.
template <class In, class OutAt, class Free>
Donors choose_donors(const Traits& traits, size_t ins, In in, size_t outs, OutAt out_at, Free free) {
  Donors d;
  const auto fits = [&](size_t i, const Layout& out) {
    const Layout& l = in(i);
    return l.dtype == out.dtype && l.shape == out.shape && free(i);
  };
  size_t next = 0;
  for (size_t k = 0; k < outs; ++k) {
    const Layout& out = out_at(k);
    int32_t& donor = d.emplace_back(-1);
    if (out.aliases_input >= 0) continue;
    if (traits.updates_in_place && fits(k, out)) donor = int32_t(k);
    for (size_t i = next; traits.may_alias && i < ins && donor < 0; ++i)
      if (traits.may_alias & mask_of(i) && fits(i, out)) donor = int32_t(i), next = i + 1;
  }
  return d;
}
template <class Free> Donors choose_donors(const Node& n, Free free) {
  return choose_donors(
      n.op->traits(), n.in.size(), [&](size_t i) -> const Layout& { return n.in[i].value->layout; }, n.out.size(),
      [&](size_t k) -> const Layout& { return n.out[k].layout; }, free);
}
inline bool fills_storage(const Layout& l, size_t bytes) {
  return l.offset == 0 && l.is_contiguous() && l.bytes() == bytes;
}

}  // namespace tg::detail
