// What records into the Profiler that runs: runs of ops, calls of allocators, and what a backend's device did. For
// core/, cpu/ and cuda/; programs read profiler.h. Everything here is called while detail::profiling(), and does
// nothing when that profiler has ended meanwhile.
#pragma once
#include <tapegrad/core/profile/profiler.h>

namespace tg::detail {

int64_t profiler_clock();               // ns, monotonic; 0 at no time in particular
ProfileOptions::Keep profiler_keeps();  // of the profiler that runs
void add_to(Profile::Totals&, std::string_view name, int64_t ns);

// One run of an op: a range.
class OpSpan : public Span {
 public:
  // path: the ranges in which it was made; null: those of the calling thread. shapes: of its inputs.
  void begin(std::string_view op, const Scope* layer, const Scope* path, std::string shapes);
};
// The run of a kernel by the calling thread, of the innermost op.
class KernelSpan {
 public:
  explicit KernelSpan(std::string_view name);
  ~KernelSpan();
  KernelSpan(const KernelSpan&) = delete;
  KernelSpan& operator=(const KernelSpan&) = delete;

 private:
  uint64_t session_;
  std::string_view name_;
  int64_t begin_;
};
// `bytes` were allocated, or freed if negative, by a call that began at that time.
void note_memory(Device, int64_t bytes) noexcept;
void note_call(std::string_view name, int64_t begin) noexcept;

// The path `inner` as it is inside `outer`; null is the empty path.
const Scope* joined_path(const Scope* outer, const Scope* inner);

// Ranges for tools outside: NVTX. Called in the thread of the range.
struct RangeListener {
  void (*begin)(const char* name);
  void (*end)();
};
// By cuda/ at start-up, and by tests; returns the one before. Null: none.
const RangeListener* set_range_listener(const RangeListener*);

// A record of a device. range: what DeviceProfiler::enter() was told in the thread and at the time of its launch; 0:
// nothing. Times are those of profiler_clock().
struct DeviceKernel {
  Profile::Kernel kernel;
  uint64_t range;
  bool has_origin;  // kernel.op, layer and path are those of its node of a graph, path inside that of the range
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
  Profile::Totals kernel_totals, call_totals;  // instead of the rest, if those are kept
  std::vector<DeviceKernel> kernels;
  std::vector<DeviceCopy> copies;
  std::vector<DeviceCall> calls;
  std::vector<std::string> notes;
  uint64_t dropped = 0;
};
// What a backend's devices do while a profiler runs. Ends with it.
class DeviceProfiler {
 public:
  virtual ~DeviceProfiler() = default;
  // Work that the calling thread queues until the next of these belongs to the range; they nest.
  virtual void enter(uint64_t range) = 0;
  virtual void leave() = 0;
  virtual DeviceRecords finish() = 0;  // waits for the devices
};

}  // namespace tg::detail
