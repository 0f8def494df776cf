// The host side of the CUDA backend: one DeviceState per GPU with its stream and allocator, errors, and scratch memory.
// For the kernel files (through kernel.h), gemm and the tests of this folder; users see Device::cuda() and nothing
// else.
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
  int multiprocessors = 0;      // streaming multiprocessors
  size_t shared_per_block = 0;  // bytes, with the opt-in above 48 KiB
  size_t memory = 0;            // bytes of the card
  size_t l2_cache = 0;          // bytes
};

const Properties& properties(int device);
// Kernels and allocations of the calling thread go here, in order. An Error once a kernel has failed in this process.
cudaStream_t stream_of(int device);
// During its life, those of the calling thread go to another stream. Streams are ordered by events of the caller, and
// a block that was allocated in one and is used in another needs DeviceAllocator::used_on().
struct OnStream : ScopedValue<std::pair<int, cudaStream_t>> {
  OnStream(int device, cudaStream_t);
};

class DeviceAllocator;
DeviceAllocator& allocator_of(int device);
// After each launch: its error, or with TG_SYNC=1 that of the finished kernel, in the name of the op.
void launched(const Context&);

// From now on launches of the kernel may have so many bytes of dynamic shared memory. CUDA is asked when they are more
// than before.
void opt_in(const Context&, const void* kernel, size_t shared_bytes);

// After the host waited for the device: the Error of the first bad index that kernels noted since the last time
// (index_check.h), if there is one.
void throw_bad_index(int device);

/// Blocks for n items, `per_block` each: at least 1, at most 16 per multiprocessor, so kernels loop by the grid.
unsigned blocks_for(const Context&, int64_t n, int64_t per_block);

// Bytes on the device for the length of one kernel call; 256-byte aligned, freed in stream order. While the call is
// recorded, bytes of the recording.
void* take_scratch(int device, size_t bytes);
void give_scratch(int device, void*, size_t bytes) noexcept;
// The same, freed before the kernel returns. Context::scratch() frees when it returned.
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
