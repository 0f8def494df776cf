#pragma once
#include <tapegrad/cpu/runtime/thread_pool.h>

#include <algorithm>

namespace tg {

// n threads, or the machine's maximum, within a scope.
class ThreadsScope {
 public:
  explicit ThreadsScope(int n) : before_(cpu::num_threads()) { cpu::set_num_threads(std::min(n, cpu::max_threads())); }
  ~ThreadsScope() { cpu::set_num_threads(before_); }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  int before_;
};
template <class F> auto on_one_thread(F f) {
  const ThreadsScope one(1);
  return f();
}

}  // namespace tg
