// A plan that is ready for repeated runs: ops, layouts and pointers in arrays, persistent memory, and the parts that
// change between runs (leaves, results, random numbers). For compile.cpp; plan.h makes the plan.
#pragma once
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/engine/run_call.h>
#include <tapegrad/core/plan/plan.h>
#include <tapegrad/core/rng.h>

#include <algorithm>
#include <deque>

namespace tg::detail {

// The bytes [begin, end) of memory number `of` that a call reads or writes.
struct Access {
  uint32_t call, of;
  uintptr_t begin, end;
  bool writes;
};
// Splits calls into two branches: the critical path (0), and calls with slack (1). branches.cpp
std::vector<CallOrder> find_branches(size_t calls, std::span<const Access>);

// The values that a traced function reads and makes, as slots of the graph.
struct Binding {
  struct CapturedVariable {
    Ref<Variable> variable;
    uint32_t slot = kNone;       // of its value before the call; kNone: not read
    uint32_t new_value = kNone;  // slot; kNone: it keeps its value
    size_t hooks;
    bool updated;        // at any time
    bool bf16_copy;      // slots are of its bf16 copy; its f32 entry precedes
    bool requires_grad;  // in the trace
  };
  std::vector<uint32_t> inputs;  // slots; kNone: not read
  std::vector<CapturedVariable> variables;
  std::vector<uint32_t> outputs;
  std::vector<const Variable*> captured_as;  // by input; may be null
  const Variable* captured(const Variable* v) const {
    return std::ranges::any_of(variables, [&](auto& x) { return x.variable.get() == v; }) ? v : nullptr;
  }
};
inline size_t hooks_of(const Variable& v) { return v.hooks ? v.hooks->list.size() : 0; }
// An Error if an input that is read is a variable with a new value: after the assignment the function would read the
// new value, a replay the old one.
void check_inputs(const Binding&, std::span<const Variable* const>);
// The state of a generator before and in the trace.
struct GeneratorSpan {
  Rng* generator;
  Rng outside, begin, end;
  bool covers(const Rng& at) const { return at.seed == begin.seed && at.offset >= begin.offset; }
};

// The parts that all runs share. Runs patch pointers and dynamic ops within the calls.
struct ExecutablePlan {
  // The memory of one or more values, and the pointers to it.
  struct MemorySource {
    enum class Kind : uint8_t {
      input,     // input `index`
      variable,  // the value of variable `index` before the call
      fixed,     // owned by the plan; it never moves
      per_run,   // allocated for each run: the caller keeps it
      donated    // storage of source `index` if unshared, else like per_run
    } kind;
    uint32_t index = 0;
    Device device = {};
    size_t bytes = 0;
    Ref<Storage> storage = nullptr;  // fixed
    struct Entry {
      std::byte** at;
      size_t offset;
      uint32_t call;
      bool writes;
    };
    std::vector<Entry> patch_sites = {};  // pointers within calls
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
  std::vector<Layout> layouts;      // by slot
  std::deque<Layout> own_layouts;   // of results of replacement ops
  std::vector<uint32_t> source_of;  // by slot; kNone: within a chain
  std::vector<MemorySource> sources;
  std::vector<uint32_t> moving_sources;  // all that are not fixed
  std::vector<OpPtr> ops;
  // In order of emission: an op that counts steps precedes those that read the count.
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

  bool fits() const;         // whether variables are as in the trace
  bool given(Inputs) const;  // whether inputs are
  std::vector<Tensor> run(Inputs);
  size_t ops() const { return plan_.calls.size(); }
  size_t bytes() const { return plan_.bytes + copied_bytes_ + (recording_ ? recording_->bytes() : 0); }
  uint64_t launches() const { return launches_; }  // runs as one recording
  uint64_t recorded() const { return recorded_; }  // recorded calls, repeats included
  const std::string& why_not_recorded() const { return why_not_; }

 private:
  using MemorySource = ExecutablePlan::MemorySource;
  struct Memory {                  // of a source
    Storage* storage;              // in this run
    Ref<Storage> owned = nullptr;  // for this run
    // The recording uses this memory instead of `storage`, which moves; contents are copied. null: none.
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
  void run_singly(std::string why);  // for good; stderr gets the reason
  std::vector<Tensor> results() const;
  bool free(const MemorySource&, Inputs) const;
  Ref<Value> value_of(uint32_t slot) const;
  Value* start_value(uint32_t variable) const {
    const Binding::CapturedVariable& v = binding_.variables[variable];
    return v.bf16_copy ? v.variable->value->bf16_copy.get() : v.variable->value.get();
  }

  const Binding binding_;
  const ExecutablePlan plan_;
  std::vector<const Variable*> assigned_;  // sorted
  std::vector<GeneratorSpan> generators_;
  std::vector<Memory> memory_;                          // by source
  std::vector<OpPtr> ops_;                              // of this run
  std::vector<ExecutablePlan::DynamicOp> dynamic_ops_;  // without those that turned out constant
  std::vector<Ref<Value>> new_values_;                  // empty between runs
  std::vector<Ref<Storage>> read_;                      // of variables, while other threads may update them
  size_t copied_bytes_ = 0;
  uint64_t runs_ = 0, launches_ = 0, recorded_ = 0;
  std::vector<uint32_t> changed_;  // calls whose arguments differ from the recording
  size_t now_ = 0;                 // the current or last call
  uint8_t failures_ = 0;           // a bit for each of the last 8 runs
  bool retried_ = false;           // after an Error
  uint64_t profiler_ = 0;          // the profiler that knows the ops of the recording
  std::string why_not_;
  std::unique_ptr<Recording> recording_;  // last member: destroyed first
};

}  // namespace tg::detail
