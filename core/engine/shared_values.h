// Lets a thread read variables that another one updates: it gets the old value or the new one. Readers announce
// themselves by a store; a writer waits until no thread reads, by membarrier(2) (an asymmetric big-reader lock).
#pragma once
#include <tapegrad/core/node.h>

namespace tg::detail {

struct ValueReader {
  std::atomic<uint32_t> depth = 0;
};
extern constinit thread_local ValueReader* t_reader;
extern std::atomic<bool> g_writing;
ValueReader& new_reader();
void wait_for_writer(ValueReader&);

// Around code that follows pointers of variables. It is short: it runs no kernel and waits for no other thread.
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
  // Waits while another thread updates the variable, or for a while if it traces a function that does.
  void wait_for(const Variable& v) {
    if (is_updating(v)) [[unlikely]]
      wait(v);
  }

 private:
  static bool is_updating(const Variable& v) {
    return v.updating.load(std::memory_order_acquire) || (v.value->producer && v.value->producer->error);
  }
  void wait(const Variable&);
  ValueReader& reader_;
};
// The value of a tensor, kept.
inline Ref<Value> value_of(const Tensor& t) {
  (void)t.value();  // an Error for an empty tensor
  ReadsValues r;
  r.wait_for(*t.variable());
  return t.value();
}

// While it lives, no other thread reads variables.
class WritesValues {
 public:
  WritesValues();
  ~WritesValues();
  WritesValues(const WritesValues&) = delete;
  // The layout of the old value stays readable for some thousand updates: sizes are read without a lock.
  void replace(Variable&, Ref<Value>);
  bool others() const { return others_; }  // whether a second thread has read variables

 private:
  ValueReader& reader_;
  const uint32_t depth_;
  bool others_;
};
bool several_readers();

// Notes updates by threads without a trace while another thread traces a function.
class UpdatesElsewhere {
 public:
  UpdatesElsewhere();
  ~UpdatesElsewhere();
  UpdatesElsewhere(const UpdatesElsewhere&) = delete;
  static void note(const Variable& v) {
    if (active_.load(std::memory_order_relaxed)) [[unlikely]]
      add(v);
  }
  bool have(const Variable&) const;  // since the constructor

 private:
  static void add(const Variable&);
  static std::atomic<uint32_t> active_;
  size_t first_;
};

}  // namespace tg::detail
