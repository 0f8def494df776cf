// Threads read the old or new value of variables that others update. Readers store a mark; a writer waits for them with
// membarrier(2) (an asymmetric big-reader lock).
#pragma once
#include <tapegrad/core/node.h>

namespace tg::detail {

struct ValueReader {
  std::atomic<uint32_t> depth = 0;
  uint32_t id = 0;
  uint32_t runs = 0;  // its thread's eval() calls
  bool is_other(uint32_t user) const { return user && (user & ~255u) != id; }
};
extern constinit thread_local ValueReader* t_reader;
extern std::atomic<bool> g_writing;
ValueReader& new_reader();
void wait_for_writer(ValueReader&);

// Around code that follows pointers of variables: no kernels, no waits.
class ReadsValues {
 public:
  ReadsValues() : reader_(t_reader ? *t_reader : new_reader()) {
    const uint32_t depth = reader_.depth.load(std::memory_order_relaxed);
    reader_.depth.store(depth + 1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (!depth && g_writing.load(std::memory_order_acquire)) [[unlikely]]
      wait_for_writer(reader_);
  }
  ~ReadsValues() { reader_.depth.store(reader_.depth.load(std::memory_order_relaxed) - 1, std::memory_order_release); }
  ReadsValues(const ReadsValues&) = delete;
  // Waits for another thread's update, and briefly for one that traces.
  void wait_for(const Variable& v) {
    if (is_updating(v)) [[unlikely]]
      wait(v);
  }
  bool is_running(const Value& v) const { return reader_.is_other(v.runner.load(std::memory_order_acquire)); }

 private:
  bool is_updating(const Variable& v) const {
    return v.updating.load(std::memory_order_acquire) || is_running(*v.value) ||
           (v.value->producer && v.value->producer->error);
  }
  void wait(const Variable&);
  ValueReader& reader_;
};
inline Ref<Value> value_of(const Tensor& t) {
  (void)t.value();  // an Error for an empty tensor
  ReadsValues r;
  r.wait_for(*t.variable());
  return t.value();
}
inline bool on_tape(const Tensor& t) {
  (void)t.value();
  const ReadsValues r;
  const Value& v = *t.value();
  return v.tracked && v.producer && v.producer->tape();
}
void wait_until_run(const Value&);  // run of another thread
// End a claim(). The second gives up a node that may not have run.
void leave(Node&);
void abandon(Node&);

// No other thread reads variables in this scope.
class WritesValues {
 public:
  WritesValues();
  ~WritesValues();
  WritesValues(const WritesValues&) = delete;
  void replace(Variable&, Ref<Value>);
  bool others() const { return others_; }  // a second thread has read variables
  ValueReader& thread() const { return reader_; }
  void check_unused(const Node&) const;  // an Error if another thread uses it
  void claim(Node&) const;
  Value* owned(Out&) const;  // null: the value is freed now

 private:
  ValueReader& reader_;
  const uint32_t depth_;
  bool others_;
};
bool several_readers();
// Frees a former value of a variable except its layout, which stays readable for some thousand updates: sizes are read
// without a lock.
void retire(Value*);

// Notes updates that threads without a trace make during a trace.
class UpdatesElsewhere {
 public:
  UpdatesElsewhere();
  ~UpdatesElsewhere();
  UpdatesElsewhere(const UpdatesElsewhere&) = delete;
  static void note(const Variable& v) {
    if (active_.load(std::memory_order_relaxed)) [[unlikely]]
      add(v);
  }
  bool have(const Variable&) const;  // updated after construction

 private:
  static void add(const Variable&);
  static std::atomic<uint32_t> active_;
  size_t first_;
};

}  // namespace tg::detail
