/// @file
/// Profiler: what a program does between two points and how long it takes. While one runs, ranges (ProfileRange,
/// layers, ops), kernels, copies, calls of allocators and memory are recorded; stop() hands them over as a Profile, of
/// which profile_tables.h makes tables and write_trace() a file that Perfetto opens. Kernels of a GPU are timed by
/// CUPTI, on the device's clock. Timing with a profiler on is slower than without: compare parts of one profile, and
/// time whole runs without.
///   tg::Profiler profiler;
///   for (int i = 0; i < 3; ++i) { tg::ProfileRange step("step"); train_step(); }
///   tg::Profile p = profiler.stop();
#pragma once
#include <tapegrad/core/device.h>
#include <tapegrad/core/profile/profile_range.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tg {

/// Times are nanoseconds since the profiler began. Names, scopes and paths live as long as the process.
struct Profile {
  static constexpr uint32_t kNone = ~0u;

  struct Range {
    RangeKind kind;
    std::string_view name;    ///< a layer's is its path, "gpt.h.3.mlp"
    uint32_t thread;          ///< numbered in the order of their first records
    uint32_t parent;          ///< in ranges, of the same thread; kNone
    int64_t begin, end;       ///< what was open at stop() ends there
    const Scope* path;        ///< of named ranges, with itself; of an op, those in which it was made; null: none
    const Scope* layer;       ///< of an op: where it was made; of a layer: itself; else null
    std::string shapes = {};  ///< of an op: "(4, 512) f32, (512) f32"
  };
  /// One run of a kernel: on the CPU, of one op or chain of ops.
  struct Kernel {
    std::string_view name;  ///< of a function on a GPU, of an op on the CPU
    Device device;
    uint32_t track;       ///< CPU: the thread; GPU: the stream
    int64_t begin, end;   ///< of its work
    uint32_t range;       ///< the innermost in which it was launched; kNone
    std::string_view op;  ///< that it is the work of; empty: of none
    const Scope* path;    ///< of named ranges: see Range
    const Scope* layer;
    bool in_graph = false;  ///< launched by a graph, with others
  };
  /// by a device, not by a kernel
  struct Copy {
    enum class Kind : uint8_t { host_to_device, device_to_host, device_to_device, set } kind;
    Device device;
    uint32_t track;
    int64_t bytes, begin, end;
    uint32_t range;
    const Scope* path;
    bool in_graph = false;
  };
  /// of the CUDA runtime; of the CPU's allocator
  struct Call {
    std::string_view name;
    Backend backend;
    uint32_t thread;
    int64_t begin, end;
    uint32_t range;
  };
  /// one allocation or free of tensors and scratch memory
  struct Memory {
    Device device;
    uint32_t thread;
    int64_t time;
    int64_t bytes;  ///< negative: freed
    int64_t live;   ///< of the device, after it
  };
  struct Total {
    int64_t count = 0, total = 0, min = 0, max = 0;  ///< ns
    void add(const Total& t) {
      min = count ? std::min(min, t.min) : t.min;
      max = std::max(max, t.max);
      count += t.count;
      total += t.total;
    }
  };
  using Totals = std::map<std::string, Total, std::less<>>;  ///< by name

  int64_t duration = 0;
  std::vector<Range> ranges;  ///< by thread, then by begin: a parent comes before its children
  std::vector<Kernel> kernels;
  std::vector<Copy> copies;
  std::vector<Call> calls;
  std::vector<Memory> memory;                       ///< by time
  Totals range_totals, kernel_totals, call_totals;  ///< what Keep::totals keeps instead of all that is above
  std::vector<std::string> notes;                   ///< what is missing, and why; where times are not what they seem
  uint64_t dropped = 0;                             ///< records beyond ProfileOptions::most_records
};

struct ProfileOptions {
  enum class Keep : uint8_t {
    records,  ///< everything
    totals,   ///< counts and times by name only: for long runs
    nothing   ///< for nvtx alone
  } keep = Keep::records;
  /// Ranges are handed to NVTX as well, for NVIDIA's tools to show. An Error in a build without CUDA.
  bool nvtx = false;
  size_t most_records = size_t(1) << 24;  ///< of each thread and kind; what comes later is counted and dropped
};

class Profiler {
 public:
  /// Waits for what devices have queued, which is not of the profile. An Error while another one runs: it is one for
  /// all threads of the process.
  explicit Profiler(const ProfileOptions& = {});
  ~Profiler();  ///< without stop(): what was recorded is forgotten
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  /// Waits for the devices, and hands over what was recorded. Once.
  Profile stop();

 private:
  uint64_t session_;
};

/// Chrome's trace events: ranges by thread, kernels and copies by stream, memory as counters. An Error when the file
/// cannot be written.
void write_trace(const Profile&, const std::string& path);

}  // namespace tg
