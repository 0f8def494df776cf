// A plan for repeated runs: ops, layouts and pointers in arrays, persistent memory, and changing parts (leaves,
// results, random numbers). For compile.cpp.
#pragma once
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/engine/run_call.h>
#include <tapegrad/core/plan/plan.h>
#include <tapegrad/core/rng.h>

#include <algorithm>
#include <deque>

namespace tg::detail {

// Bytes [begin, end) of memory `of` that a call accesses.
struct Access {
  uint32_t call, of;
  uintptr_t begin, end;
  bool writes;
};
// Two branches: the critical path (0), calls with slack (1).
std::vector<CallOrder> find_branches(size_t calls, std::span<const Access>);

// Values that a traced function reads and makes, as slots.
struct Binding {
  struct CapturedVariable {
    Ref<Variable> variable;
    uint32_t slot = kNone;       // value before the call; kNone: not read
    uint32_t new_value = kNone;  // slot; kNone: keeps its value
    size_t hooks;
    bool updated;        // assigned at some time
    bool bf16_copy;      // slots of the bf16 copy; the f32 entry precedes
    bool requires_grad;  // value of the flag in the trace
  };
  std::vector<uint32_t> inputs;  // slots; kNone: not read
  std::vector<CapturedVariable> variables;
  std::vector<uint32_t> outputs;
  std::vector<const Variable*> captured_as;  // indexed by input; may be null
  const Variable* captured(const Variable* v) const {
    return std::ranges::any_of(variables, [&](auto& x) { return x.variable.get() == v; }) ? v : nullptr;
  }
};
inline size_t hooks_of(const Variable& v) { return v.hooks ? v.hooks->list.size() : 0; }
// An Error for a read input that gets a new value: the function would read the new one, a replay the old one.
void check_inputs(const Binding&, std::span<const Variable* const>);
// A generator before and in the trace.
struct GeneratorSpan {
  Rng* generator;
  Rng outside, begin, end;
  bool covers(const Rng& at) const { return at.seed == begin.seed && at.offset >= begin.offset; }
};

// Parts shared by runs, which patch pointers and dynamic ops.
struct ExecutablePlan {
  struct MemorySource {
    enum class Kind : uint8_t {
      input,     // `index`: input
      variable,  // value of variable `index` before the call
      fixed,     // owned by the plan, never moves
      per_run,   // new in each run: the caller keeps it
      donated    // source `index`'s storage if unshared, else like per_run
    } kind;
    uint32_t index = 0;
    Device device = {};
    size_t bytes = 0;
    Ref<Storage> storage = nullptr;  // set for Kind::fixed
    struct Entry {
      std::byte** at;
      size_t offset;
      uint32_t call;
      bool writes;
    };
    std::vector<Entry> patch_sites = {};
  };
  struct OwnedChain {  // not movable
    ChainPlan plan;
    std::vector<const Op*> ops;
    std::vector<std::byte*> data;
    Device device;
    DType from, to;
    ChainCall call{{plan, ops, data, device}, from, to};
  };
  struct DynamicOp {  // replaced by for_next_step()
    OpPtr traced;
    uint32_t op, call, node;
    const Op** use;
  };
  std::vector<Layout> layouts;      // indexed by slot
  std::deque<Layout> own_layouts;   // results of replacement ops
  std::vector<uint32_t> source_of;  // indexed by slot; kNone: inside a chain
  std::vector<MemorySource> sources;
  std::vector<uint32_t> moving_sources;  // sources that are not fixed
  std::vector<OpPtr> ops;
  // Emission order: ops that count steps precede readers.
  std::vector<DynamicOp> dynamic_ops;
  std::vector<Buf> bufs;
  std::deque<OwnedChain> chains;
  std::vector<KernelCall> calls;
  size_t bytes = 0;
};
ExecutablePlan make_executable_plan(const Graph&, const Plan&, const Binding&);  // executable_builder.cpp

class Executable {
 public:
  Executable(const Graph&, const Plan&, Binding, std::vector<GeneratorSpan>);
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  bool fits() const;         // variables are as in the trace
  bool given(Inputs) const;  // inputs are as in the trace
  std::vector<Tensor> run(Inputs);
  size_t ops() const { return plan_.calls.size(); }
  size_t bytes() const { return plan_.bytes + copied_bytes_ + (recording_ ? recording_->bytes() : 0); }
  uint64_t launches() const { return launches_; }
  uint64_t recorded() const { return recorded_; }  // recorded calls with repeats
  const std::string& why_not_recorded() const { return why_not_; }

 private:
  using MemorySource = ExecutablePlan::MemorySource;
  struct Memory {                  // a source's memory
    Storage* storage;              // storage of this run
    Ref<Storage> owned = nullptr;  // allocated for this run
    // The recording's copy of the moving `storage`, or null.
    Ref<Storage> copy = nullptr;
    std::byte* data = nullptr;  // the patched pointer
  };

  void bind(Inputs);
  bool compute(Inputs, class ReadsValues&);
  bool copied(const MemorySource&, Memory&);
  void copy_moved(MemorySource::Kind);
  Rng moved(const Rng& traced) const;
  void update_dynamic_ops(bool first);
  void undo_steps();
  std::vector<CallOrder> order_of_calls() const;
  void start_recording();
  bool record_changes(bool fresh);
  bool call_as_one();
  void call_all();
  void assign_variables();
  void run_singly(std::string why);  // permanent; stderr gets the reason
  std::vector<Tensor> results() const;
  bool free(const MemorySource&, Inputs) const;
  Ref<Value> value_of(uint32_t slot) const;
  Value* start_value(uint32_t variable) const {
    const Binding::CapturedVariable& v = binding_.variables[variable];
    if (!v.bf16_copy) return v.variable->value.get();
    return copies_.empty() ? v.variable->value->bf16_copy.get() : copies_[variable].get();
  }

  const Binding binding_;
  const ExecutablePlan plan_;
  std::vector<const Variable*> assigned_;  // sorted
  std::vector<GeneratorSpan> generators_;
  std::vector<Memory> memory_;                          // indexed by source
  std::vector<OpPtr> ops_;                              // ops of this run
  std::vector<ExecutablePlan::DynamicOp> dynamic_ops_;  // ops not found constant
  std::vector<Ref<Value>> new_values_;                  // empty between runs
  std::vector<Ref<Storage>> read_;                      // variables that other threads may update
  std::vector<Ref<Value>> copies_;                      // bf16 copies of parameters
  size_t copied_bytes_ = 0;
  uint64_t runs_ = 0, launches_ = 0, recorded_ = 0;
  std::vector<uint32_t> changed_;  // calls that differ from the recording
  size_t now_ = 0;                 // current or last call
  uint8_t failures_ = 0;           // bits of the last 8 runs
  bool retried_ = false;           // tried again after an Error
  uint64_t profiler_ = 0;          // profiler that knows the ops
  std::string why_not_;
  std::unique_ptr<Recording> recording_;  // destroyed first
};

}  // namespace tg::detail
