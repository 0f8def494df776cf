#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/run_call.h>
#include <tapegrad/core/profile/work.h>

namespace tg {
const EngineStats& engine_stats() { return detail::mutable_stats(); }
const Running& running() { return detail::t_running; }

namespace detail {
constinit thread_local Running t_running;
EngineStats& mutable_stats() {
  static constinit thread_local EngineStats s{};
  return s;
}

void run_kernel(const KernelCall& c) {
  const struct Timed {
    std::string_view name;
    int64_t begin;
    ~Timed() {
      if (begin) [[unlikely]]
        note_kernel(name, begin);
    }
  } timed{c.name, profiling() && c.device.backend == Backend::cpu ? profiler_clock() : 0};
  if (c.chain) return detail::runtime_of(c.device).run_chain(*c.chain);
  Context context{c.device, c.name};
  c.op->run(c.in, c.out, context);
}
void count_work(const KernelCall& c) {
  if (c.chain) return t_work->add(c.name, c.chain->from, c.chain->to, c.chain->work);
  const DType to = c.out[0].dtype();
  t_work->add(c.name, c.in.empty() ? to : c.in[0].dtype(), to, c.op->work(c.in, c.out));
}
void RunningCall::begin_range(const Scope* outer_range) {
  if (call_.op && call_.op->traits().kind == OpKind::view) return;
  std::string shapes;  // "(4, 512) f32, (512) f32"
  for (const Buf& b : call_.in) shapes += fmt::format("{}{}", shapes.empty() ? "" : ", ", *b.layout);
  span_.begin(call_.name, call_.scope, joined_path(outer_range, call_.range), std::move(shapes));
}
void RunningCall::launch() const {
  if (t_work) [[unlikely]]
    count_work(call_);
  if (running_dry()) {
    if (!call_.op || call_.device.backend != Backend::cpu) return;
    Context context{call_.device, call_.name};
    (void)context.scratch(size_t(call_.op->scratch_bytes(call_.in, call_.out)));
    return;
  }
  run_kernel(call_);
  ++mutable_stats().kernels;
}
}  // namespace detail
}  // namespace tg
