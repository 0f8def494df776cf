/// @file
/// What a backend offers besides kernels: memory, copies, synchronisation, recordings, threads. One BackendRuntime per
/// backend, registered at start-up by cpu/ and cuda/; a build without a backend has none, and asking for it is an Error
/// that says how to get it. Users read memory_stats(), synchronize() and the thread functions; kernels see Context
/// (op.h) only.
#pragma once
#include <tapegrad/core/allocator.h>
#include <tapegrad/core/device.h>

#include <functional>
#include <memory>
#include <string>

namespace tg {

struct Chain;  ///< chain.h
struct Op;
namespace detail {
class DeviceProfiler;  // profiler_record.h
}

/// A row of calls of kernels that a device runs as one, again and again (a CUDA graph). For compile(): executable.cpp.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Records all calls, which do not run. An Error when one does what no recording holds, such as a read by the host;
  /// the device goes on as before.
  virtual void record() = 0;
  /// The same for one call, whose arguments changed. False: its work has another form now, and record() must follow.
  virtual bool record(size_t call) = 0;
  /// The host does not wait. False: not done, because the calling thread's stream is not that of the recording.
  virtual bool launch() = 0;
  virtual size_t bytes() const = 0;  ///< of device memory that is the recording's until it ends
};

class BackendRuntime {
 public:
  virtual ~BackendRuntime() = default;
  virtual int device_count() const = 0;
  virtual std::string why_missing() const { return {}; }     ///< where there is no device: what this machine lacks
  virtual std::string describe(int index) const = 0;         ///< for logs: "x86-64-v4, 2 threads"
  virtual bool in_use(int /*index*/) const { return true; }  ///< false: nothing has been done with it yet
  virtual size_t memory(int index) const = 0;                ///< bytes in all, whoever uses them; 0: nobody knows
  virtual Allocator& allocator(int index) = 0;
  virtual bool runs_in_chains(const Op&) { return false; }  ///< a pointwise op
  virtual void run_chain(const Chain&) {}                   ///< of such ops only
  /// Of `count` calls, of which call(i) makes the i-th. Null: the backend does not record. An Error: it does not now.
  virtual std::unique_ptr<Recording> recording(int /*index*/, size_t /*count*/, std::function<void(size_t)> /*call*/) {
    return nullptr;
  }
  /// For a Profiler that begins. Null: the backend has no device whose work must be asked for. An Error says why it
  /// cannot be told.
  virtual std::unique_ptr<detail::DeviceProfiler> profiler();
  virtual void synchronize(int index) = 0;  ///< returns when all work queued so far is done
  virtual void copy_from_host(int index, void* to, const void* from, size_t bytes) = 0;  ///< done on return
  virtual void copy_to_host(int index, void* to, const void* from, size_t bytes) = 0;    ///< done on return
};

/// An Error when this build or machine does not have the device; it names what is missing.
BackendRuntime& runtime_of(Device);
bool has_device(Device);
bool register_backend(Backend, BackendRuntime*);

/// Bytes of tensors on a device: live, peak since reset_peak(), cached for reuse.
MemoryStats memory_stats(Device = {});
void reset_peak(Device = {});
void empty_cache(Device = {});
void synchronize(Device = {});

/// Threads of the CPU backend, for the whole process. Results do not depend on it. An Error outside [1, cpus
/// available].
int num_threads();
void set_num_threads(int);

}  // namespace tg
