/// @file
/// What a backend offers besides kernels: memory, copies, synchronisation, recordings, threads. There is one
/// BackendRuntime per backend, which cpu/ and cuda/ register at start-up. A build without a backend has none, and
/// asking for it is an Error that says how to get it. Users call memory_stats(), synchronize() and the thread
/// functions; kernels see only Context (op.h).
#pragma once
#include <tapegrad/core/backend/allocator.h>
#include <tapegrad/core/device.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tg {

struct Chain;  // chain.h
struct Op;
namespace detail {
class DeviceProfiler;  // profiler_record.h
}

/// When a call of a Recording may run: the calls of a branch run one after the other.
struct CallOrder {
  uint8_t branch = 0;
  std::vector<uint32_t> after = {};  ///< earlier calls of other branches, which must have run
};
/// Kernel calls that a device runs as one (a CUDA graph), in one or more branches. Compiled functions use it.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Records all calls; they do not run. Throws an Error if a call does what a recording cannot hold, such as a read by
  /// the host; the device can be used as before.
  virtual void record() = 0;
  /// Records one call again, because its arguments changed. Returns false if its kernels have changed too; then the
  /// caller must call record().
  virtual bool record(size_t call) = 0;
  /// The op of a call is the one of the next step. Returns true if the next launch() reads what has changed in it from
  /// memory; false if the call must be recorded again.
  virtual bool update(size_t call, const Op&) = 0;
  /// Queues all calls; the host does not wait. Returns false, and does nothing, if the calling thread uses another
  /// stream than the one that was recorded.
  virtual bool launch() = 0;
  virtual size_t bytes() const = 0;  ///< device memory that the recording holds as long as it lives
};

/// The services of one backend. `index` is the number of a device.
class BackendRuntime {
 public:
  virtual ~BackendRuntime() = default;
  /// The number of devices; 0 if the machine has none.
  virtual int device_count() const = 0;
  /// What this machine lacks, if there is no device.
  virtual std::string why_missing() const { return {}; }
  /// A device in words, for logs: "x86-64-v4, 2 threads".
  virtual std::string describe(int index) const = 0;
  /// The way of products of bf16, where processors of one level have several, whose last bits differ; else empty.
  virtual std::string_view bf16_way() const { return {}; }
  /// Whether anything has been done with the device.
  virtual bool in_use(int /*index*/) const { return true; }
  /// All bytes of the device, whoever uses them; 0 if that is not known.
  virtual size_t memory(int index) const = 0;
  /// The allocator of a device.
  virtual Allocator& allocator(int index) = 0;
  /// Whether a pointwise op can be a part of run_chain().
  virtual bool runs_in_chains(const Op&) { return false; }
  /// Runs several pointwise ops as one kernel. runs_in_chains() was true for each.
  virtual void run_chain(const Chain&) {}
  /// Bytes for one call of a kernel, freed when it returned: Context::scratch(). Work that it queued may still use
  /// them.
  /// @{
  virtual void* take_scratch(int index, size_t bytes) { return allocator(index).allocate(bytes); }
  virtual void give_scratch(int index, void* p, size_t bytes) noexcept { allocator(index).deallocate(p, bytes); }
  /// @}
  /// The stream of the calling thread's kernels: Context::stream().
  virtual void* stream(int /*index*/) { return nullptr; }
  /// A recording of these calls, in their order; call(i) makes the i-th. Returns null if the backend cannot record, and
  /// throws an Error if it cannot record right now.
  virtual std::unique_ptr<Recording> recording(int /*index*/, std::vector<CallOrder> /*calls*/,
                                               std::function<void(size_t)> /*call*/) {
    return nullptr;
  }
  /// The device's part of a new Profiler. Returns null if kernels run on the host and need none; throws an Error that
  /// says why the device cannot be profiled.
  virtual std::unique_ptr<detail::DeviceProfiler> profiler();
  /// Returns when all work queued on the device so far is done.
  virtual void synchronize(int index) = 0;
  /// Copies `bytes` bytes from the host to the device, in the order of the calling thread's work: kernels that it
  /// queued before run first. Returns when `from` has been read, perhaps before the copy is done. The caller owns both
  /// buffers.
  virtual void copy_from_host(int index, void* to, const void* from, size_t bytes) = 0;
  /// Copies `bytes` bytes within the device, in the order of the calling thread's work.
  virtual void copy(int index, void* to, const void* from, size_t bytes) = 0;
  /// Copies `bytes` bytes from the device to the host, in the order of the calling thread's work: kernels that it
  /// queued before run first. Returns when the copy is done. The caller owns both buffers. Errors of queued work, such
  /// as an index out of range, are thrown here.
  virtual void copy_to_host(int index, void* to, const void* from, size_t bytes) = 0;
};

/// The backend of a device. An Error says what is missing if this build or machine lacks the device.
BackendRuntime& runtime_of(Device);
/// Whether this build and this machine have the device.
bool has_device(Device);
/// Makes a backend known. cpu/ and cuda/ call it before main().
bool register_backend(Backend, BackendRuntime*);

/// Bytes of tensors on a device: live now, peak since reset_peak(), and cached for reuse.
MemoryStats memory_stats(Device = {});
/// Begins a new peak of memory_stats() at the bytes that are live now.
void reset_peak(Device = {});
/// Returns cached memory of a device to the system.
void empty_cache(Device = {});
/// Returns when all work queued on a device so far is done. Errors of that work, such as an index out of range, are
/// thrown here.
void synchronize(Device = {});

/// The number of threads of the CPU backend, for the whole process.
int num_threads();
/// Sets the number of threads of the CPU backend. Results do not depend on it. An Error outside of [1, processors
/// available].
void set_num_threads(int);

}  // namespace tg
