// Host side of the CUDA backend: a DeviceState per GPU, errors, scratch memory.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/cuda/runtime/errors.h>

#include <memory>
#include <string>
#include <utility>

namespace tg::cuda {

struct Properties {
  std::string name;
  int major = 0, minor = 0;     // compute capability
  int multiprocessors = 0;      // SMs
  size_t shared_per_block = 0;  // bytes, with opt-in
  size_t memory = 0;            // bytes
  size_t l2_cache = 0;          // bytes
};

const Properties& properties(int device);
// The calling thread's stream. An Error once a kernel has failed in this process.
cudaStream_t stream_of(int device);
// Scope: the thread uses another stream. Callers order streams by events, and call DeviceAllocator::used_on() for
// shared blocks.
struct OnStream : ScopedValue<std::pair<int, cudaStream_t>> {
  OnStream(int device, cudaStream_t);
};

cudaError_t find_kernel();

class DeviceAllocator;
DeviceAllocator& allocator_of(int device);
void launched(const Context&);

inline bool has_shared(const Context& c, size_t bytes) { return bytes <= properties(c.device.index).shared_per_block; }
// Raises the limit of dynamic shared memory. An Error above has_shared().
void opt_in(const Context&, const void* kernel, size_t shared_bytes);

// After a synchronisation: throws the first bad index (index_check.h) since the last.
void throw_bad_index(int device);

/// Blocks for n items, `per_block` each: at least 1, at most 16 per SM, so kernels loop.
unsigned blocks_for(const Context&, int64_t n, int64_t per_block);

// For one kernel call, 256-byte aligned, freed in stream order. Recorded calls take memory of the recording.
void* take_scratch(int device, size_t bytes);
void give_scratch(int device, void*, size_t bytes) noexcept;
// Scratch memory that is freed before the kernel function returns; Context::scratch() is freed after it.
class Scratch {
 public:
  Scratch(const Context& c, size_t bytes)
      : device_(c.device.index), bytes_(bytes), data_(take_scratch(device_, bytes)) {}
  ~Scratch() { give_scratch(device_, data_, bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T> T* as() const { return static_cast<T*>(data_); }

 private:
  int device_;
  size_t bytes_;
  void* data_;
};

}  // namespace tg::cuda
