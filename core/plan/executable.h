// A plan made ready to run again and again: ops, layouts and pointers in a row, memory that stays, and what differs
// from run to run (leaves, results, random numbers). For compile.cpp; how it is planned is in plan.h.
#pragma once
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/plan/plan.h>
#include <tapegrad/core/rng.h>

#include <deque>

namespace tg::detail {

// Bytes that a call reads or writes: of the memory numbered `of`, from `begin` to `end`.
struct Access {
  uint32_t call, of;
  uintptr_t begin, end;
  bool writes;
};
// The order that accesses, listed call by call, impose: calls on the longest way through are one branch, and those that
// could wait a second one. Bytes stand for time. branches.cpp
std::vector<CallOrder> find_branches(size_t calls, std::span<const Access>);

// What a traced function reads and makes, by slots of the graph.
struct Binding {
  struct CapturedVariable {
    Ref<Variable> variable;
    uint32_t slot = kNone;       // of the value that it has at the start; kNone: nobody reads that
    uint32_t new_value = kNone;  // slot; kNone: it keeps its value
    bool bf16_copy;              // they are those of the copy that its value keeps; its own come before
    bool requires_grad;          // as it was traced
  };
  std::vector<uint32_t> inputs;  // slots; kNone: nobody reads it
  std::vector<CapturedVariable> variables;
  std::vector<uint32_t> outputs;
};
// An Error if an input that is read is a variable which gets a new value: the function would read that after it was
// assigned, and a replay would not.
void check_inputs(const Binding&, std::span<const Variable* const>);
// A generator as it stood when the trace began and ended.
struct GeneratorSpan {
  Rng* generator;
  Rng begin, end;
  bool covers(const Rng& at) const {
    return at.seed == begin.seed && at.offset >= begin.offset && at.offset <= end.offset;
  }
};

class Executable {
 public:
  Executable(const Graph&, const Plan&, Binding, std::vector<GeneratorSpan>);
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  bool fits() const;  // whether the variables have the layouts and flags that they had
  std::vector<Tensor> run(Inputs);
  size_t ops() const { return calls_.size(); }
  size_t bytes() const { return bytes_ + (recording_ ? recording_->bytes() : 0); }
  uint64_t launches() const { return launches_; }  // of runs as one recording
  uint64_t recorded() const { return recorded_; }  // calls, again and again
  const std::string& why_not_recorded() const { return why_not_; }

 private:
  // Where values are in memory.
  struct MemorySource {
    enum class Kind : uint8_t {
      input,     // number `index`
      variable,  // the start value of number `index`
      fixed,     // of the executable: it never moves
      per_run,   // allocated for each run, because the caller keeps it
      donated    // the storage of source `index` if nobody else holds it, else as per_run
    } kind;
    uint32_t index = 0;
    Device device = {};
    size_t bytes = 0;
    Ref<Storage> owned = nullptr;  // for the length of a run, or fixed
    Storage* storage = nullptr;    // of this run
    Ref<Storage> copy = nullptr;   // what a recording reads or writes in place of it; null: the storage itself
    std::byte* data = nullptr;     // as patched
    struct Entry {
      std::byte** at;
      size_t offset;
      uint32_t call;
      bool writes;
    };
    std::vector<Entry> patch_sites = {};  // pointers of calls
  };
  struct ChainCall {
    ChainPlan plan;
    std::vector<const Op*> ops;
    std::vector<std::byte*> data;
    DType from, to;  // what a WorkScope is told of a run
    OpWork work = {};
  };
  struct Call {
    uint32_t op, first, in = 0, out = 0;  // in ops_; in bufs_: inputs, then outputs
    ChainCall* chain = nullptr;
    Device device;
    std::string_view name = {};
    const Scope *scope, *range;
  };
  class Builder;

  void build(const Graph&, const Plan&);
  void patch_pointers(const MemorySource&);
  void bind(Inputs);
  bool copied(MemorySource&);
  void copy_moved(MemorySource::Kind);
  Rng moved(const Rng& traced) const;
  void update_dynamic_ops();
  void undo_steps();
  void call(const Call&);
  void count_work() const;
  std::vector<CallOrder> order_of_calls() const;
  void start_recording();
  void record_all();
  bool record_changes();
  bool call_as_one();
  void call_all();
  void assign_variables();
  void run_singly(std::string why);  // from now on; stderr says so
  std::vector<Tensor> results() const;
  bool free(const MemorySource&, Inputs) const;
  Ref<Value> value_of(uint32_t slot) const;
  Value* start_value(uint32_t variable) const {
    const Binding::CapturedVariable& v = binding_.variables[variable];
    return v.bf16_copy ? v.variable->value->bf16_copy.get() : v.variable->value.get();
  }

  Binding binding_;
  std::vector<const Variable*> assigned_;  // sorted
  std::vector<GeneratorSpan> generators_;
  std::vector<Layout> layouts_;      // of slots
  std::deque<Layout> own_layouts_;   // of results of ops that stand for several nodes
  std::vector<uint32_t> source_of_;  // of slots; kNone: within a chain
  std::vector<MemorySource> sources_;
  std::vector<uint32_t> moving_sources_;  // those that are not fixed
  std::vector<OpPtr> ops_;
  struct DynamicOp {  // for_next_step() replaces it
    OpPtr traced;
    uint32_t op, call, node;
    const Op** in_chain;
  };
  std::vector<DynamicOp> dynamic_ops_;  // as they were emitted: one that counts steps is before those that read it
  std::vector<Buf> bufs_;
  std::deque<ChainCall> chains_;
  std::vector<Call> calls_;
  std::vector<Ref<Value>> new_values_;  // empty between runs
  size_t bytes_ = 0;
  uint64_t runs_ = 0, launches_ = 0, recorded_ = 0;
  std::vector<uint32_t> changed_;  // calls whose arguments are not those of the recording
  size_t now_ = 0;                 // the call that is made, or was last
  size_t whole_records_ = 0;       // in a row
  uint64_t profiler_ = 0;          // that knows of which op each part of the recording is
  std::string why_not_;
  std::unique_ptr<Recording> recording_;  // ends before what it uses
};

}  // namespace tg::detail
