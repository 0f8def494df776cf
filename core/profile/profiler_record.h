// Adds records to the running Profiler, for core/, cpu/ and cuda/. Callers have checked detail::profiling(). The
// functions do nothing if that profiler has ended since.
#pragma once
#include <tapegrad/core/profile/profiler.h>

namespace tg::detail {

int64_t profiler_clock();               // ns, monotonic, of any epoch
ProfileOptions::Keep profiler_keeps();  // of the running profiler
void add_to(Profile::Totals&, std::string_view name, int64_t ns);

// The range of one op.
class OpSpan : public Span {
 public:
  // path: named ranges of its call; null: those of the calling thread. shapes: of its inputs.
  void begin(std::string_view op, const Scope* layer, const Scope* path, std::string shapes);
};
// note_memory(): `bytes` were allocated, or freed if negative. note_kernel(), note_call(): a kernel of the innermost
// op, or an allocator call, began at `begin` in this thread and ends.
void note_memory(Device, int64_t bytes) noexcept;
void note_kernel(std::string_view name, int64_t begin) noexcept;
void note_call(std::string_view name, int64_t begin) noexcept;

// The path `inner` within `outer`; null is the empty path.
const Scope* joined_path(const Scope* outer, const Scope* inner);

// Passes ranges to external tools (NVTX), in the thread of the range.
struct RangeListener {
  void (*begin)(const char* name);
  void (*end)();
};
// Called by cuda/ at start-up, and by tests; returns the previous listener. A null listener turns it off.
const RangeListener* set_range_listener(const RangeListener*);

// A record of a device. range: the argument of DeviceProfiler::enter() in the launching thread at that time; 0: none.
// Times are those of profiler_clock().
struct DeviceKernel {
  Profile::Kernel kernel;
  uint64_t range;
  // kernel.op, layer and path are those of its graph node; the path is within that of the range.
  bool has_origin;
};
struct DeviceCopy {
  Profile::Copy copy;
  uint64_t range;
  bool has_origin;
};
struct DeviceCall {
  Profile::Call call;
  uint64_t range;
};
struct DeviceRecords {
  Profile::Totals kernel_totals, call_totals;  // for Keep::totals: the other lists are empty
  std::vector<DeviceKernel> kernels;
  std::vector<DeviceCopy> copies;
  std::vector<DeviceCall> calls;
  std::vector<std::string> notes;
  uint64_t dropped = 0;
};
// Records the work of a backend's devices, until it is destroyed.
class DeviceProfiler {
 public:
  virtual ~DeviceProfiler() = default;
  // The calling thread's work until leave() belongs to the range. Calls nest.
  virtual void enter(uint64_t range) = 0;
  virtual void leave() = 0;
  virtual DeviceRecords finish() = 0;  // waits for the devices
};

}  // namespace tg::detail
