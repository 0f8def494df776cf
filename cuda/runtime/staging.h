// Copies between the host's ordinary memory and a device through a ring of pinned memory: the host copies one piece
// while the bus copies another, and goes on when its own part is done. For backend.cpp, which has one per device.
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
  // A ring of `chunks` chunks, 3 at least. A piece is a chunk at most, a multiple of 256 bytes.
  Staging(size_t chunk, size_t chunks) : chunk_(chunk), size_(chunk * chunks) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // Returns when `from` has been read: it waits for the device only while the ring is full. Not while the stream
  // captures: a graph would read the ring when others have it.
  void to_device(void* to, const void* from, size_t bytes, cudaStream_t);
  // Returns when the copy and all that was queued in the stream before it are done.
  void to_host(void* to, const void* from, size_t bytes, cudaStream_t);
  size_t chunk() const { return chunk_; }

 private:
  struct Piece {  // that a queued copy reads or writes
    uint64_t begin;
    Event done;
  };
  bool open();  // false: the system has no memory to pin
  // The next n bytes of the ring, until the copy that used() is called after is done.
  std::byte* reserve(size_t n);
  void used(cudaStream_t);

  size_t chunk_, size_;
  std::mutex mutex_;
  std::byte* ring_ = nullptr;
  uint64_t begin_ = 0, end_ = 0;  // of the last piece; positions grow for ever, and lie in the ring at % size_
  std::deque<Piece> pieces_;      // the oldest first
  std::vector<Event> spare_;
};

}  // namespace tg::cuda
