// The nodes that a function emits while compile() traces it, which do not run, and the outside variables that it reads
// or assigns. For emit.cpp, tensor.cpp and compile.cpp only.
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
  // Records ops of the calling thread from now on instead of running them. Traces do not nest.
  Trace();
  ~Trace();  // restores the values of variables
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // A variable that is read or assigned. Ops of the trace read a separate value, `during`, so that variables sharing a
  // value are distinct: they may not share it in the next run. The variable itself changes only if it is assigned,
  // because other threads may read it.
  struct CapturedVariable {
    Ref<Variable> variable;
    Ref<Value> before, during;
    bool bf16_copy = false;  // values are those of the bf16 copy
    bool updated = false;    // at any time
    Ref<Value> after = {};   // of the last assign() of this thread
    Ref<Value> now() const { return after && bf16_copy ? after->bf16_copy : after; }
    bool assigned() const { return now() && now().get() != before.get() && now().get() != during.get(); }
  };
  std::vector<CapturedVariable> held;
  std::vector<Ref<Node>> nodes;    // in order of emission
  std::vector<Ref<Value>> copied;  // whose bf16 copies ops make
  bool constants = false;          // host data may become part of the plan
  // Generator k has the seed kSeed + k in the trace, and seeds[k] outside.
  static constexpr uint64_t kSeed = 0x9d3a67c1e05b8f42;
  std::vector<uint64_t> seeds;
  std::unordered_map<const Rng*, uint64_t> taken;  // blocks, by address
  uint64_t seed_outside(uint64_t seed) const { return seed - kSeed < seeds.size() ? seeds[seed - kSeed] : seed; }

  // A handle with the same id, label and hooks.
  Tensor add_input(const Tensor&);
  Tensor add_state(const Tensor& t);
  void made(const Ref<Variable>& v);  // a new variable
  // The entry of `held` with this value `during`, or null.
  const CapturedVariable* captured(const Tensor&, const Value& seen) const;
  Ref<Value> hold(CapturedVariable);  // its `during`
  // The value that an op reads. Lazy values from outside are evaluated.
  Ref<Value> reads(const Tensor&);
  void emitted(const Ref<Node>&);
  Ref<Value> assigns(const Tensor& to, const Tensor& value);  // the new value of `to`
  // An Error if the function reads state k through another handle, too.
  void updates_state(size_t k);
  // Throws, now and at the end of the trace.
  [[noreturn]] void refuse(const std::string& why);
  void check_refused() const;
  void check_elsewhere();
  void check_host_read(const Tensor&);
  // An Error unless `constants`; `what` is "makes (3) f32 of host data".
  void check_constant(const std::string& what);
  bool made_by_function(const Variable& v) const { return v.id >= first_id_; }
  // An Error if a value outlives the trace that a replay would not make again. `inputs` and `returned` may outlive it.
  void check_kept(Inputs inputs, Inputs returned);
  // Undoes steps that the ops have counted, after the trace failed.
  void undo_steps() const;

 private:
  size_t capture(const Tensor&);
  std::string maker(const Tensor&) const;
  bool traced(const Value& v) const { return v.producer && emitted_.contains(v.producer.get()); }
  std::unordered_set<const Node*> emitted_;
  std::unordered_set<const Value*> known_;                // inputs, and values `during`
  std::unordered_map<const Value*, std::string> taped_;   // inputs on a tape outside
  std::unordered_map<const Variable*, size_t> captured_;  // indices of `held`
  std::vector<Ref<Variable>> made_;                       // inputs too
  std::vector<const Variable*> inputs_;                   // in the trace
  std::vector<OpPtr> ops_;                                // in order of emission
  std::optional<Error> refused_;
  const UpdatesElsewhere elsewhere_;
  const uint64_t first_id_, reads_elsewhere_ = g_reads_elsewhere;
};

// A lower bound for ids of later tensors, in all threads.
uint64_t id_of_next_tensors();

extern constinit thread_local Trace* t_trace;
inline Trace* tracing() { return t_trace; }
inline void Trace::made(const Ref<Variable>& v) { made_.push_back(v); }

// Called before the host reads elements: an Error while a function is traced.
inline void host_reads(const Tensor& t) {
  if (Trace* trace = tracing()) [[unlikely]]
    trace->check_host_read(t);
}

void forbid_in_trace(std::string_view op, std::string_view what);  // core/plan/compile.h
// Called before the host draws a number.
inline void host_draws() {
  if (Trace* trace = tracing()) [[unlikely]]
    trace->check_constant("draws random numbers on the host");
}

}  // namespace tg::detail
