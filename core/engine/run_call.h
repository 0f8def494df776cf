// One call of a kernel: profile, work and counters around it.
#pragma once
#include <tapegrad/core/backend/chain.h>
#include <tapegrad/core/node.h>
#include <tapegrad/core/profile/profiler_record.h>

namespace tg::detail {

EngineStats& mutable_stats();
extern constinit thread_local Running t_running;

struct ChainCall : Chain {
  DType from, to;  // first input, last output
  OpWork work = {};
};
struct KernelCall {
  const Op* op = nullptr;  // null: a chain
  const ChainCall* chain = nullptr;
  std::string_view name = {};
  const Scope *scope = nullptr, *range = nullptr;
  Device device = {};
  Bufs in = {}, out = {};  // arguments of the kernel
};
void run_kernel(const KernelCall&);
void count_work(const KernelCall&);

// Sets running(). Nests: an op may evaluate others.
struct NowRunning : ScopedValue<Running> {
  [[nodiscard]] explicit NowRunning(const KernelCall& c) : ScopedValue(t_running, Running{c.name, c.scope, c.range}) {}
};
// Scope of a call: Errors and profiles assign allocations of outputs to it.
class RunningCall {
 public:
  [[nodiscard]] explicit RunningCall(const KernelCall& c, const Scope* outer_range = nullptr) : call_(c), running_(c) {
    if (profiling()) [[unlikely]]
      begin_range(outer_range);
  }
  void launch() const;  // counts, and runs unless dry

 private:
  void begin_range(const Scope* outer_range);
  const KernelCall& call_;
  const NowRunning running_;
  OpSpan span_;
};

}  // namespace tg::detail
