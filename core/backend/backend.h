/// @file
/// The services of a backend except kernels: memory, copies, synchronisation, recordings, threads. cpu/ and cuda/ each
/// register a BackendRuntime at start-up. Users call memory_stats(), synchronize() and the thread functions; kernels
/// see only Context (op.h).
#pragma once
#include <tapegrad/core/backend/allocator.h>
#include <tapegrad/core/device.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tg {

struct Chain;  // chain.h
struct Op;
namespace detail {
class DeviceProfiler;  // profiler_record.h
}

/// The order of a call in a Recording. Calls of one branch run in sequence.
struct CallOrder {
  uint8_t branch = 0;
  std::vector<uint32_t> after = {};  ///< earlier calls of other branches that it depends on
};
/// Kernel calls that a device runs as one (a CUDA graph), for compiled functions.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Records all calls without running them. An Error if one cannot be recorded (a host read); the device remains
  /// usable.
  virtual void record() = 0;
  /// Records changed calls again and returns their count; 0 if a kernel changed or the device refused: call record().
  virtual size_t record(std::span<const uint32_t> calls) = 0;
  /// Records all calls as one flat graph from now on. False if it already did.
  virtual bool flatten() = 0;
  /// Updates a call to the next step's op. True if launch() reads the changes from memory; else record it again.
  virtual bool update(size_t call, const Op&) = 0;
  /// Queues all calls; the host does not wait. False, without effect, on another stream than the recorded one.
  virtual bool launch() = 0;
  virtual size_t bytes() const = 0;  ///< the recording's device memory
};

/// Services of one backend. `index` is a device number.
class BackendRuntime {
 public:
  virtual ~BackendRuntime() = default;
  /// Number of devices; 0 if the machine has none.
  virtual int device_count() const = 0;
  /// Why there is no device.
  virtual std::string why_missing() const { return {}; }
  /// A device in words, for logs: "x86-64-v4, 2 threads".
  virtual std::string describe(int index) const = 0;
  /// The bf16 matmul method if processors of one level differ in last bits; else empty.
  virtual std::string_view bf16_method() const { return {}; }
  /// Whether the device has been used.
  virtual bool in_use(int /*index*/) const { return true; }
  /// Total bytes of the device; 0 if unknown.
  virtual size_t memory(int index) const = 0;
  /// Allocator of a device.
  virtual Allocator& allocator(int index) = 0;
  virtual bool runs_in_chains(const Op&) { return false; }
  /// Runs several pointwise ops as one kernel. runs_in_chains() is true for each.
  virtual void run_chain(const Chain&) {}
  /// Context::scratch(): bytes for one kernel call, freed when it returns. Memory is reused in stream order, after
  /// queued work. @{
  virtual void* take_scratch(int index, size_t bytes) { return allocator(index).allocate(bytes); }
  virtual void give_scratch(int index, void* p, size_t bytes) noexcept { allocator(index).deallocate(p, bytes); }
  /// @}
  /// The stream of the calling thread's kernels: Context::stream().
  virtual void* stream(int /*index*/) { return nullptr; }
  /// A recording of these calls in order; call(i) makes the i-th. The result is null if the backend cannot record, an
  /// Error if it cannot now.
  virtual std::unique_ptr<Recording> recording(int /*index*/, std::vector<CallOrder> /*calls*/,
                                               std::function<void(size_t)> /*call*/) {
    return nullptr;
  }
  /// Device's part of a Profiler; null if kernels run on the host, an Error if it cannot be profiled.
  virtual std::unique_ptr<detail::DeviceProfiler> profiler();
  /// Returns when all queued work of the device is done.
  virtual void synchronize(int index) = 0;
  /// Copies `bytes` bytes from the host to the device, after the calling thread's queued work. Returns when `from` has
  /// been read. The caller owns both buffers.
  virtual void copy_from_host(int index, void* to, const void* from, size_t bytes) = 0;
  /// Copies `bytes` bytes within the device, after the calling thread's queued work.
  virtual void copy(int index, void* to, const void* from, size_t bytes) = 0;
  /// Copies `bytes` bytes from the device to the host, after the calling thread's queued work. Returns when done. The
  /// caller owns both buffers. Throws Errors of queued work, such as an index out of range.
  virtual void copy_to_host(int index, void* to, const void* from, size_t bytes) = 0;
};

/// Whether this build and this machine have the device.
bool has_device(Device);
namespace detail {
class DryRun;
extern constinit thread_local DryRun* t_dry_run;
inline bool running_dry() { return t_dry_run; }
BackendRuntime& dry_runtime(Backend, BackendRuntime& real);  // runtime that replaces `real` in dry runs

/// The backend of a device. An Error says what this build or machine lacks.
BackendRuntime& runtime_of(Device);
/// Registers a backend. cpu/ and cuda/ call it before main().
bool register_backend(Backend, BackendRuntime*);
}  // namespace detail

/// Bytes of tensors on a device: live, peak since reset_peak(), cached for reuse.
MemoryStats memory_stats(Device = {});
/// Resets the peak of memory_stats() to the live bytes.
void reset_peak(Device = {});
/// Returns cached memory of a device to the system.
void empty_cache(Device = {});
/// Returns when all queued work of a device is done. Throws its Errors, such as an index out of range.
void synchronize(Device = {});

/// Threads of the CPU backend.
int num_threads();
/// Sets num_threads(). Results do not depend on it. An Error outside of [1, available processors].
void set_num_threads(int);

}  // namespace tg
