// The nodes that a function emits while compile() traces it, which do not run, and the outside variables that it reads
// or assigns. For emit.cpp, tensor.cpp and compile.cpp only.
#pragma once
#include <tapegrad/core/node.h>

#include <unordered_map>
#include <unordered_set>

namespace tg::detail {

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
    const Value* now() const { return bf16_copy ? variable->value->bf16_copy.get() : variable->value.get(); }
    bool assigned() const { return now() && now() != before.get() && now() != during.get(); }
  };
  std::vector<CapturedVariable> held;
  std::vector<Ref<Node>> nodes;  // in order of emission
  bool constants = false;        // host data may become part of the plan

  void add_input(const Tensor&);      // a handle of the trace
  void made(const Ref<Variable>& v);  // a new variable
  // The value that an op reads. Lazy values from outside are evaluated.
  Ref<Value> reads(const Tensor&);
  Ref<Value> bf16_copy(const Tensor&);  // keep_bf16_copy(); captures that of an outside variable
  void emitted(const Ref<Node>&);
  Ref<Value> assigns(const Tensor& to, const Tensor& value);  // the new value of `to`
  [[noreturn]] void fail_host_read(const Tensor&) const;
  // An Error unless `constants`; `what` is "makes (3) f32 of host data".
  void check_constant(const std::string& what) const;
  bool made_here(const Tensor&) const;  // a constant of the function; the host may read it
  bool made_by_function(const Variable& v) const { return v.id >= first_id_; }
  // An Error if a value outlives the trace that a replay would not make again. `inputs` and `returned` may outlive it.
  void check_kept(Inputs inputs, Inputs returned);
  // Undoes steps that the ops have counted, after the trace failed.
  void undo_steps() const;

 private:
  std::string maker(const Tensor&) const;
  bool traced(const Value& v) const { return v.producer && emitted_.contains(v.producer.get()); }
  std::unordered_set<const Node*> emitted_;
  std::unordered_set<const Value*> known_;                // inputs, and values `during`
  std::unordered_map<const Variable*, size_t> captured_;  // indices of `held`
  std::vector<Ref<Variable>> made_;                       // inputs too
  std::vector<OpPtr> ops_;                                // in order of emission
  const uint64_t first_id_;
};

extern constinit thread_local Trace* t_trace;
inline Trace* tracing() { return t_trace; }
inline void Trace::made(const Ref<Variable>& v) { made_.push_back(v); }

// Called before the host reads elements: an Error while a function is traced.
inline void host_reads(const Tensor& t) {
  if (const Trace* trace = tracing(); trace && !trace->made_here(t)) [[unlikely]]
    trace->fail_host_read(t);
}

// Called before the host draws a number.
inline void host_draws() {
  if (const Trace* trace = tracing()) [[unlikely]]
    trace->check_constant("draws random numbers on the host");
}

}  // namespace tg::detail
