/// @file
/// Profiler: records what a program does between two points, and how long it takes. It records ranges (ProfileRange,
/// layers, ops), kernels, copies, allocator calls and memory. stop() returns them as a Profile; profile_tables.h makes
/// tables of it, and write_trace() a file for Perfetto. CUPTI times the kernels of a GPU, on the device's clock. A
/// program runs slower under a Profiler: compare parts of one profile with each other, and time whole runs without.
/// @code
/// tg::Profiler profiler;
/// for (int i = 0; i < 3; ++i) { tg::ProfileRange step("step"); train_step(); }
/// tg::Profile p = profiler.stop();
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

/// What a Profiler recorded. Times are nanoseconds since it began. Names, scopes and paths are never freed.
struct Profile {
  static constexpr uint32_t kNone = ~0u;  ///< the index of no range

  /// One instance of a range.
  struct Range {
    RangeKind kind;
    std::string_view name;  ///< a layer's is its path, "gpt.h.3.mlp"
    uint32_t thread;        ///< numbered in the order of their first records
    uint32_t parent;        ///< index in `ranges` of the enclosing range of this thread, or kNone
    int64_t begin, end;     ///< a range that was open at stop() ends there
    const Scope* path;   ///< the named ranges, this one included; for an op, those in which it was called; may be null
    const Scope* layer;  ///< for an op, the scope in which it was called; for a layer, its own; else null
    std::string shapes = {};  ///< for an op, its inputs: "(4, 512) f32, (512) f32"
  };
  /// One run of a kernel. On the CPU, a kernel is one op or one chain of ops.
  struct Kernel {
    std::string_view name;  ///< on a GPU, the name of the function; on the CPU, that of the op
    Device device;
    uint32_t track;       ///< on a GPU, the stream; on the CPU, the thread
    int64_t begin, end;   ///< of the work itself
    uint32_t range;       ///< index of the innermost range in which it was launched, or kNone
    std::string_view op;  ///< the op that the kernel belongs to; may be empty
    const Scope* path;    ///< the named ranges that the op was called in (Range::path)
    const Scope* layer;
    bool in_graph = false;  ///< a CUDA graph launched it, together with others
  };
  /// A copy or fill that a device made without a kernel. `bytes` is its size; the other members are those of Kernel.
  struct Copy {
    enum class Kind : uint8_t { host_to_device, device_to_host, device_to_device, set } kind;
    Device device;
    uint32_t track;
    int64_t bytes, begin, end;
    uint32_t range;
    const Scope* path;
    bool in_graph = false;
  };
  /// A call of the CUDA runtime, or of the CPU's allocator. `range` is the index of the innermost range, or kNone.
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
    int64_t bytes;  ///< negative if they were freed
    int64_t live;   ///< bytes of the device in use after it
  };
  /// Times of all records with one name, in nanoseconds.
  struct Total {
    /// Their number, sum, smallest and largest time.
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

  int64_t duration = 0;       ///< from the begin of the profiler to stop()
  std::vector<Range> ranges;  ///< by thread, then by begin: a parent comes before its children
  std::vector<Kernel> kernels;
  std::vector<Copy> copies;
  std::vector<Call> calls;
  std::vector<Memory> memory;                       ///< by time
  Totals range_totals, kernel_totals, call_totals;  ///< what Keep::totals keeps; the lists above are then empty
  std::vector<std::string> notes;                   ///< what is missing and why, and which times mislead
  uint64_t dropped = 0;                             ///< number of records beyond ProfileOptions::most_records
};

/// Options of a Profiler.
struct ProfileOptions {
  /// What is kept of each record.
  enum class Keep : uint8_t {
    records,  ///< everything
    totals,   ///< counts and times by name only: for long runs
    nothing   ///< for nvtx alone
  } keep = Keep::records;
  /// Passes ranges to NVTX as well, so NVIDIA's tools show them. An Error in a build without CUDA.
  bool nvtx = false;
  size_t most_records = size_t(1) << 24;  ///< for each thread and kind of record; later ones are counted and dropped
};

/// Records from its constructor to stop(). There is one Profiler at a time; it records all threads of the process.
class Profiler {
 public:
  /// Waits for queued work of the devices, which is not recorded, and begins. An Error while another Profiler runs.
  explicit Profiler(const ProfileOptions& = {});
  ~Profiler();  ///< discards the records if stop() was not called
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  /// Waits for the devices, ends the recording and returns the records. May be called once.
  Profile stop();

 private:
  uint64_t session_;
};

/// Writes Chrome's trace events: ranges by thread, kernels and copies by stream, memory as counters. Perfetto opens the
/// file. An Error if it cannot be written.
void write_trace(const Profile&, const std::string& path);

}  // namespace tg
