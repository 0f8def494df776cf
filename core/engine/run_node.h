// Running one node. For the engine and autograd/; op authors read op.h.
#pragma once
#include <tapegrad/core/node.h>

namespace tg::detail {

Error with_scope(const Error&, const Scope*);  // adds "in <path>" once
// An Error if input or output i was written since.
void check_version(const Node&, size_t i, bool output = false);
void check_version(const Node&, size_t i, const Value& input);
void run_or_evaluate(Node&, Inputs outs);  // eager: one node, no plan
uint64_t next_mark();
bool observing();  // an ObserveScope exists

// Values that nodes keep for backward.
void plan_recomputing(Node&);
Ref<Value> recomputed(const Node&, size_t i);  // input i, which was not kept

// Rounds to nearest, keeps denormals and traps nothing (MXCSR of x86-64).
struct [[maybe_unused]] DefaultFloatMode {
#ifdef __x86_64__
  const uint32_t former = __builtin_ia32_stmxcsr(), usual = 0x1f80 | (former & 0x3f);
  DefaultFloatMode() {
    if (former != usual) __builtin_ia32_ldmxcsr(usual);
  }
  ~DefaultFloatMode() {
    if (former != usual) __builtin_ia32_ldmxcsr(former);
  }
#endif
};
// Returns when asynchronous kernels (Traits::asynchronous) have ended, or the thread's stream waits for them. Call it
// before their memory is freed or read. on_wait_for_async() registers a wait.
void wait_for_async() noexcept;
bool on_wait_for_async(void (*)() noexcept);

// Collects tensors that require a gradient and that unrecorded ops read.
struct ReadsOfTracked : ScopedValue<std::vector<Tensor>*> {
  [[nodiscard]] explicit ReadsOfTracked(std::vector<Tensor>& to);
};

// Finds NaN and infinities in a node's inputs before the kernel overwrites them; after() checks outputs and throws
// AnomalyScope's Error.
class AnomalyCheck {
 public:
  AnomalyCheck(const Node&, Bufs in);
  void after(Bufs out) const;

 private:
  const Node& node_;
  std::string inputs_;
  bool nan_ = false, infinite_ = false;
};

// Each output's donor input, or -1.
using Donors = SmallVec<int32_t, 3>;
using OutputStorages = SmallVec<Ref<Storage>, 3>;  // indexed by output
struct BufferSlice {                               // memory of a result
  static constexpr uint32_t kNone = ~0u;
  uint32_t arena = kNone;  // kNone: separate storage
  size_t offset = 0;
};
struct BufferAssignment {  // memory of an evaluation's outputs; empty: separate storage
  std::span<const BufferSlice> slots;
  std::span<const Ref<Storage>> arenas;
};
OutputStorages run_node(Node&, const Donors&, const BufferAssignment& = {});
// run_node()'s steps, for nodes that run together.
void check_alive(const Node&);  // an Error if it failed before
// Node::error of traced nodes: no thread may run them.
const std::string* error_of_traced();
inline bool has_failed(const Node& n) { return n.error && n.error != error_of_traced(); }
Ref<Storage> new_storage(const Node&, size_t output, const BufferAssignment&);
Ref<Storage> output_storage(const Node&, size_t output, int32_t donor, const BufferAssignment&);
// Passes results to readers, drops values that backward does not need. `made` may be another node's storage.
void commit_outputs(Node&, const OutputStorages&);
void mark_failed(Node&, const Donors&, const Error& why);
Donors eager_donors(const Node&);
// Finds a donor for each output: an input of equal shape and dtype that traits allow and free(i) accepts.
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
inline bool fills_storage(const Layout& l, size_t bytes) {
  return l.offset == 0 && l.is_contiguous() && l.bytes() == bytes;
}

}  // namespace tg::detail
