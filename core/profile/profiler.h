/// @file
/// Profiler: records what a program does between two points, with times: ranges (ProfileRange, layers, ops), kernels,
/// copies, allocator calls and memory. CUPTI times GPU kernels by the device's clock. A Profiler slows the program:
/// compare times within one profile, and time whole runs without it.
/// @code
/// tg::Profiler profiler;
/// for (int i = 0; i < 3; ++i) { tg::ProfileRange step("step"); train_step(); }
/// tg::Profile p = profiler.stop();  // profile_tables.h makes tables of it, write_trace() a file for Perfetto
/// @endcode
#pragma once
#include <tapegrad/core/device.h>
#include <tapegrad/core/profile/profile_range.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tg {

/// A Profiler's records. Times: nanoseconds since its start. Names, scopes and paths are never freed.
struct Profile {
  static constexpr uint32_t kNone = ~0u;  ///< no index

  /// One instance of a range.
  struct Range {
    RangeKind kind;
    std::string_view name;  ///< layers: the path, "gpt.h.3.mlp"
    uint32_t thread;        ///< order of first records
    uint32_t parent;        ///< enclosing range in `ranges`, or kNone
    int64_t begin, end;     ///< stop() ends open ranges
    /// Named ranges around and including this one; for an op, those of its call. May be null.
    const Scope* path;
    /// Scope of an op's call or a layer; else null.
    const Scope* layer;
    std::string shapes = {};  ///< an op's inputs: "(4, 512) f32, (512) f32"
  };
  /// A kernel's run. On the CPU: an op or a chain.
  struct Kernel {
    std::string_view name;  ///< GPU: function; CPU: op
    Device device;
    uint32_t track;       ///< GPU: stream; CPU: thread
    int64_t begin, end;   ///< times of the work
    uint32_t range;       ///< innermost range of its launch, or kNone
    std::string_view op;  ///< op that launched the kernel, or empty
    const Scope* path;    ///< the call's named ranges (Range::path)
    const Scope* layer;
    bool in_graph = false;  ///< launched by a CUDA graph
  };
  /// A device's copy or fill without a kernel; other members as in Kernel.
  struct Copy {
    enum class Kind : uint8_t { host_to_device, device_to_host, device_to_device, set } kind;
    Device device;
    uint32_t track;
    int64_t bytes, begin, end;
    uint32_t range;
    const Scope* path;
    bool in_graph = false;
  };
  /// A call of the CUDA runtime or the CPU's allocator. `range`: innermost index, or kNone.
  struct Call {
    std::string_view name;
    Backend backend;
    uint32_t thread;
    int64_t begin, end;
    uint32_t range;
  };
  /// One allocation or release of tensors or scratch memory, at `time`.
  struct Memory {
    Device device;
    uint32_t thread;
    int64_t time;
    int64_t bytes;  ///< negative if freed
    int64_t live;   ///< bytes in use on the device afterwards
  };
  /// Times of all records with one name, in nanoseconds.
  struct Total {
    int64_t count = 0, total = 0, min = 0, max = 0;
    void add(const Total& t) {
      min = count ? std::min(min, t.min) : t.min;
      max = std::max(max, t.max);
      count += t.count;
      total += t.total;
    }
  };
  /// Totals by name.
  using Totals = std::map<std::string, Total, std::less<>>;

  int64_t duration = 0;       ///< constructor to stop()
  std::vector<Range> ranges;  ///< sorted by thread, then begin; parents before children
  std::vector<Kernel> kernels;
  std::vector<Copy> copies;
  std::vector<Call> calls;
  std::vector<Memory> memory;  ///< sorted by time
  /// Keep::totals: the lists above are empty.
  Totals range_totals, kernel_totals, call_totals;
  std::vector<std::string> notes;  ///< missing records, misleading times
  uint64_t dropped = 0;            ///< records beyond ProfileOptions::most_records
};

/// Options of a Profiler.
struct ProfileOptions {
  /// Kept information.
  enum class Keep : uint8_t {
    records,  ///< everything
    totals,   ///< counts and times by name: for long runs
    nothing   ///< nvtx only
  } keep = Keep::records;
  /// Also passes ranges to NVTX, for NVIDIA's tools. An Error in a build without CUDA.
  bool nvtx = false;
  /// Per thread and kind; later records are counted and dropped.
  size_t most_records = size_t(1) << 24;
};

/// Records all threads from its constructor to stop(). One at a time.
class Profiler {
 public:
  /// Starts after queued work, which is not recorded. An Error while another runs.
  [[nodiscard]] explicit Profiler(const ProfileOptions& = {});
  ~Profiler();  ///< discards records without stop()
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  /// Waits for the devices and returns the records, once.
  Profile stop();

 private:
  uint64_t session_;
};

/// Writes Chrome trace events, which Perfetto opens: ranges by thread, kernels and copies by stream, memory as
/// counters. An Error if the file cannot be written.
void write_trace(const Profile&, const std::string& path);

}  // namespace tg
