// KernelCall: how eager, lazy and compiled runs call a kernel.
#pragma once
#include <tapegrad/core/backend/chain.h>
#include <tapegrad/core/node.h>
#include <tapegrad/core/profile/profiler_record.h>

namespace tg::detail {

EngineStats& mutable_stats();
extern constinit thread_local Running t_running;

struct ChainCall : Chain {
  DType from, to;  // of the first input and the last output
  OpWork work = {};
};
struct KernelCall {
  const Op* op = nullptr;  // null: a chain
  const ChainCall* chain = nullptr;
  std::string_view name = {};
  const Scope *scope = nullptr, *range = nullptr;
  Device device = {};
  Bufs in = {}, out = {};  // of the op
};
void run_kernel(const KernelCall&);  // a profile records those of the CPU
void count_work(const KernelCall&);  // for t_work, not null

// Sets running() while it lives. They nest: an op may evaluate others.
struct NowRunning : ScopedValue<Running> {
  [[nodiscard]] explicit NowRunning(const KernelCall& c) : ScopedValue(t_running, Running{c.name, c.scope, c.range}) {}
};
// A call while it lives: allocations of its outputs belong to it, in Errors and profiles.
class RunningCall {
 public:
  [[nodiscard]] explicit RunningCall(const KernelCall& c, const Scope* outer_range = nullptr) : call_(c), running_(c) {
    if (profiling()) [[unlikely]]
      begin_range(outer_range);
  }
  void launch() const;  // counts the call, and runs it unless dry

 private:
  void begin_range(const Scope* outer_range);
  const KernelCall& call_;
  const NowRunning running_;
  OpSpan span_;
};

}  // namespace tg::detail
