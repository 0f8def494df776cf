// What a function reads, emits and assigns while it is traced for compile(): nodes that do not run, and the variables
// from outside that they read or that take new values. For emit.cpp, tensor.cpp and compile.cpp only.
#pragma once
#include <tapegrad/core/node.h>

#include <unordered_map>
#include <unordered_set>

namespace tg::detail {

class Trace {
 public:
  Trace();   // ops of the calling thread are recorded here, and not run; traces do not nest
  ~Trace();  // variables have the values again that they had
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // A variable that is read or assigned. Ops of the trace read a value of its own, so that two variables which share
  // one are told apart: they may not share it in the next run. The variable itself changes only if it is assigned:
  // other threads may read it.
  struct CapturedVariable {
    Ref<Variable> variable;
    Ref<Value> before, during;
    bool bf16_copy = false;  // they are those of the copy that the variable's value keeps
    const Value* now() const { return bf16_copy ? variable->value->bf16_copy.get() : variable->value.get(); }
    bool assigned() const { return now() && now() != before.get() && now() != during.get(); }
  };
  std::vector<CapturedVariable> held;
  std::vector<Ref<Node>> nodes;  // in the order of emission
  bool constants = false;        // host data may become a part of the plan

  void add_input(const Tensor&);        // a handle of the trace's own
  void made(const Ref<Variable>& v);    // a new variable
  Ref<Value> reads(const Tensor&);      // what an op sees; what is lazy and not of the trace is evaluated
  Ref<Value> bf16_copy(const Tensor&);  // as keep_bf16_copy(); that of a variable from outside is one, too
  void emitted(const Ref<Node>&);
  Ref<Value> assigns(const Tensor& to, const Tensor& value);  // what `to` becomes
  [[noreturn]] void fail_host_read(const Tensor&) const;
  void check_constant(const std::string& what) const;  // an Error unless `constants`: "makes (3) f32 of host data"
  bool made_here(const Tensor&) const;                 // a constant that the function makes; it may read it
  bool made_by_function(const Variable& v) const { return v.id >= first_id_; }
  // An Error if something outlives the trace that a replay would not make again. `inputs`, `returned`: handles that
  // may.
  void check_kept(Inputs inputs, Inputs returned);
  // The trace has failed: steps that its ops have counted are taken back.
  void undo_steps() const;

 private:
  std::string maker(const Tensor&) const;
  bool traced(const Value& v) const { return v.producer && emitted_.contains(v.producer.get()); }
  std::unordered_set<const Node*> emitted_;
  std::unordered_set<const Value*> known_;                // inputs, and values `during`
  std::unordered_map<const Variable*, size_t> captured_;  // places in `held`
  std::vector<Ref<Variable>> made_;                       // inputs too
  std::vector<OpPtr> ops_;                                // in the order of emission
  const uint64_t first_id_;
};

extern constinit thread_local Trace* t_trace;
inline Trace* tracing() { return t_trace; }
inline void Trace::made(const Ref<Variable>& v) { made_.push_back(v); }

// Before the host reads the elements of a tensor: an Error while a function is traced.
inline void host_reads(const Tensor& t) {
  if (const Trace* trace = tracing(); trace && !trace->made_here(t)) [[unlikely]]
    trace->fail_host_read(t);
}

// Before the host draws a number.
inline void host_draws() {
  if (const Trace* trace = tracing()) [[unlikely]]
    trace->check_constant("draws random numbers on the host");
}

}  // namespace tg::detail
