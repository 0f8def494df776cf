// Pageable host memory to or from a device through a ring of pinned memory: the host fills a segment while the bus
// transfers another.
#pragma once
#include <tapegrad/cuda/runtime/stream.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace tg::cuda {

class Staging {
 public:
  // At least 3 chunks. Segments: at most a chunk, a multiple of 256 bytes.
  Staging(size_t chunk, size_t chunks) : chunk_(chunk), size_(chunk * chunks) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // Returns when `from` has been read; waits for the device while the ring is full. Not during a capture: a graph would
  // read the ring after its reuse.
  void to_device(void* to, const void* from, size_t bytes, cudaStream_t);
  // Returns when the copy, and all earlier work of the stream, is done.
  void to_host(void* to, const void* from, size_t bytes, cudaStream_t);
  size_t chunk() const { return chunk_; }

 private:
  struct Transfer {  // queued copy's memory
    uint64_t begin;
    Event done;
  };
  bool open();  // false: cannot pin memory
  // n bytes of the ring, until the copy before used() is done.
  std::byte* reserve(size_t n);
  void used(cudaStream_t);

  size_t chunk_, size_;
  std::mutex mutex_;
  std::byte* ring_ = nullptr;
  uint64_t begin_ = 0, end_ = 0;
  std::deque<Transfer> transfers_;  // oldest first
  std::vector<Event> spare_;
};

}  // namespace tg::cuda
