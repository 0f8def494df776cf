// Included by doctest files only.
#pragma once
#include <tapegrad/cpu/runtime/thread_pool.h>

#include <algorithm>

namespace tg {

// The number of threads within a scope: n, or as many as this machine has.
class ThreadsScope {
 public:
  explicit ThreadsScope(int n) : before_(cpu::num_threads()) { cpu::set_num_threads(std::min(n, cpu::max_threads())); }
  ~ThreadsScope() { cpu::set_num_threads(before_); }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  int before_;
};

}  // namespace tg
