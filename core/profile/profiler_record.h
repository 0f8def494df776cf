// Adds records to the running Profiler, for core/, cpu/ and cuda/, after detail::profiling(). No effect after its end.
#pragma once
#include <tapegrad/core/profile/profiler.h>

namespace tg::detail {

int64_t profiler_clock();               // ns, monotonic, any epoch
ProfileOptions::Keep profiler_keeps();  // option of the running profiler
void add_to(Profile::Totals&, std::string_view name, int64_t ns);

// An op's range.
class OpSpan : public Span {
 public:
  // path: named ranges of the call; null: those of the thread. shapes: the inputs' shapes.
  void begin(std::string_view op, const Scope* layer, const Scope* path, std::string shapes);
};
// note_memory(): bytes allocated, negative if freed. note_kernel() and note_call(): the innermost op's kernel, or an
// allocator call, that began at `begin` in this thread and ends now.
void note_memory(Device, int64_t bytes) noexcept;
void note_kernel(std::string_view name, int64_t begin) noexcept;
void note_call(std::string_view name, int64_t begin) noexcept;

// Passes ranges to tools (NVTX) in their thread.
struct RangeListener {
  void (*begin)(const char* name);
  void (*end)();
};
// Called by cuda/ at start-up and by tests; returns the previous listener. null: off.
const RangeListener* set_range_listener(const RangeListener*);

// A device's record. range: the launching thread's DeviceProfiler::enter(), 0: none. Times: profiler_clock().
struct DeviceKernel {
  Profile::Kernel kernel;
  uint64_t range;
  // kernel.op, layer and path are those of its graph node; path lies inside the range's path.
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
  Profile::Totals kernel_totals, call_totals;  // Keep::totals: other lists are empty
  std::vector<DeviceKernel> kernels;
  std::vector<DeviceCopy> copies;
  std::vector<DeviceCall> calls;
  std::vector<std::string> notes;
  uint64_t dropped = 0;
};
// Records a backend's devices until destroyed.
class DeviceProfiler {
 public:
  virtual ~DeviceProfiler() = default;
  // The thread's work until leave() is in the range. Nests.
  virtual void enter(uint64_t range) = 0;
  virtual void leave() = 0;
  virtual DeviceRecords finish() = 0;  // waits for the devices
};

}  // namespace tg::detail
