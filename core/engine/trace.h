// Nodes (not run) and outside variables of a function that compile() traces. For emit.cpp, tensor.cpp, compile.cpp.
#pragma once
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/node.h>
#include <tapegrad/core/rng.h>

#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace tg::detail {

extern std::atomic<uint64_t> g_reads_elsewhere;
class Trace {
 public:
  // Records the thread's ops instead of running them. Does not nest.
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // A variable that is read or assigned. Ops read a separate value, `during`: variables may share values now but not in
  // the next run. Only assignment changes the variable, which other threads may read.
  struct CapturedVariable {
    Ref<Variable> variable;
    Ref<Value> before, during;
    bool bf16_copy = false;
    bool updated = false;   // updated at some time
    Ref<Value> after = {};  // this thread's last assign()
    Ref<Value> now() const { return after && bf16_copy ? after->bf16_copy : after; }
    bool assigned() const { return now() && now().get() != before.get() && now().get() != during.get(); }
  };
  std::vector<CapturedVariable> held;
  std::vector<Ref<Node>> nodes;    // emission order
  std::vector<Ref<Value>> copied;  // values whose bf16 copy an op of the trace makes
  bool constants = false;          // host data may become constants
  // Generator k has seed kSeed + k in the trace, seeds[k] outside.
  static constexpr uint64_t kSeed = 0x9d3a67c1e05b8f42;
  std::vector<uint64_t> seeds;
  std::unordered_map<const Rng*, uint64_t> taken;  // random blocks drawn per generator
  uint64_t seed_outside(uint64_t seed) const { return seed - kSeed < seeds.size() ? seeds[seed - kSeed] : seed; }

  Tensor add_input(const Tensor&);
  Tensor add_state(const Tensor& t);
  void made(const Ref<Variable>& v);  // new variable
  // Entry of `held` with `during`, or null.
  const CapturedVariable* captured(const Tensor&, const Value& seen) const;
  Ref<Value> hold(CapturedVariable);  // returns its `during`
  // Evaluates lazy values from outside.
  Ref<Value> reads(const Tensor&);
  void emitted(const Ref<Node>&);
  Ref<Value> assigns(const Tensor& to, const Tensor& value);  // returns the new value
  // An Error if the function changed state k and also used another handle to it.
  void ends_state(size_t k, bool replaced);
  // Throws now and when the trace ends.
  [[noreturn]] void refuse(const std::string& why);
  void check_refused() const;
  void check_elsewhere();
  void check_host_read(const Tensor&);
  // An Error unless `constants`; `what` is "makes (3) f32 of host data".
  void check_constant(const std::string& what);
  bool made_by_function(const Variable& v) const { return v.id >= first_id_; }
  // An Error if other values than `inputs` and `returned` outlive the trace: replays would not make them.
  void check_kept(Inputs inputs, Inputs returned);
  // Undoes ops' counted steps after a failure.
  void undo_steps() const;

 private:
  size_t capture(const Tensor&);
  std::string maker(const Tensor&) const;
  bool traced(const Value& v) const { return v.producer && emitted_.contains(v.producer.get()); }
  std::unordered_set<const Node*> emitted_;
  std::unordered_set<const Value*> known_;                // inputs, values `during`
  std::unordered_map<const Value*, std::string> taped_;   // inputs on outer tapes
  std::unordered_map<const Variable*, size_t> captured_;  // indices of `held`
  std::vector<Ref<Variable>> made_;                       // inputs included
  std::vector<const Variable*> inputs_;                   // inputs of the trace
  std::vector<OpPtr> ops_;                                // emission order
  std::optional<Error> refused_;
  const UpdatesElsewhere elsewhere_;
  const uint64_t first_id_, reads_elsewhere_ = g_reads_elsewhere;
};

// A lower bound for ids of later tensors, in all threads.
uint64_t id_of_next_tensors();

extern constinit thread_local Trace* t_trace;
inline Trace* tracing() { return t_trace; }
inline void Trace::made(const Ref<Variable>& v) { made_.push_back(v); }

// Before the host reads elements: an Error in a trace.
inline void host_reads(const Tensor& t) {
  if (Trace* trace = tracing()) [[unlikely]]
    trace->check_host_read(t);
}

void forbid_in_trace(std::string_view op, std::string_view what);  // core/plan/compile.h
// Before the host draws a number.
inline void host_draws() {
  if (Trace* trace = tracing()) [[unlikely]]
    trace->check_constant("draws random numbers on the host");
}

}  // namespace tg::detail
