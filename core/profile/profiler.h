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

/// The records of a Profiler. Times are nanoseconds since it began. Names, scopes and paths are never freed.
struct Profile {
  static constexpr uint32_t kNone = ~0u;  ///< no index

  /// One instance of a range.
  struct Range {
    RangeKind kind;
    std::string_view name;  ///< of a layer, its path, "gpt.h.3.mlp"
    uint32_t thread;        ///< numbered in the order of first records
    uint32_t parent;        ///< enclosing range of this thread in `ranges`, or kNone
    int64_t begin, end;     ///< stop() ends open ranges
    /// The named ranges, this one included. Ops have those of their call. May be null.
    const Scope* path;
    /// The scope of an op's call, or of a layer; else null.
    const Scope* layer;
    std::string shapes = {};  ///< of an op's inputs: "(4, 512) f32, (512) f32"
  };
  /// One run of a kernel. A CPU kernel is one op or one chain of ops.
  struct Kernel {
    std::string_view name;  ///< on a GPU, the function; on the CPU, the op
    Device device;
    uint32_t track;       ///< GPU: stream; CPU: thread
    int64_t begin, end;   ///< of the work itself
    uint32_t range;       ///< innermost range of its launch, or kNone
    std::string_view op;  ///< the op of the kernel; may be empty
    const Scope* path;    ///< named ranges of the op's call (Range::path)
    const Scope* layer;
    bool in_graph = false;  ///< launched by a CUDA graph
  };
  /// A copy or fill by a device without a kernel. `bytes` is its size; the other members are those of Kernel.
  struct Copy {
    enum class Kind : uint8_t { host_to_device, device_to_host, device_to_device, set } kind;
    Device device;
    uint32_t track;
    int64_t bytes, begin, end;
    uint32_t range;
    const Scope* path;
    bool in_graph = false;
  };
  /// A call of the CUDA runtime or the CPU's allocator. `range` is the index of the innermost range, or kNone.
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
    /// Their number, and the sum, minimum and maximum of their times.
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

  int64_t duration = 0;       ///< from the constructor to stop()
  std::vector<Range> ranges;  ///< by thread, then by begin: parents before children
  std::vector<Kernel> kernels;
  std::vector<Copy> copies;
  std::vector<Call> calls;
  std::vector<Memory> memory;  ///< by time
  /// For Keep::totals; the lists above are then empty.
  Totals range_totals, kernel_totals, call_totals;
  std::vector<std::string> notes;  ///< missing records, and misleading times
  uint64_t dropped = 0;            ///< records beyond ProfileOptions::most_records
};

/// Options of a Profiler.
struct ProfileOptions {
  /// The information that is kept of each record.
  enum class Keep : uint8_t {
    records,  ///< everything
    totals,   ///< only counts and times by name: for long runs
    nothing   ///< for nvtx alone
  } keep = Keep::records;
  /// Also passes ranges to NVTX, for NVIDIA's tools. An Error in a build without CUDA.
  bool nvtx = false;
  /// Per thread and kind of record. Later records are counted and dropped.
  size_t most_records = size_t(1) << 24;
};

/// Records all threads of the process from its constructor to stop(). Only one may run at a time.
class Profiler {
 public:
  /// Waits for queued work of the devices, which is not recorded, and begins. An Error while another Profiler runs.
  [[nodiscard]] explicit Profiler(const ProfileOptions& = {});
  ~Profiler();  ///< discards the records unless stop() was called
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  /// Waits for the devices, ends the recording and returns the records. May be called once.
  Profile stop();

 private:
  uint64_t session_;
};

/// Writes Chrome trace events, which Perfetto opens: ranges by thread, kernels and copies by stream, memory as
/// counters. An Error if the file cannot be written.
void write_trace(const Profile&, const std::string& path);

}  // namespace tg
