// Copies between the host's ordinary memory and a device through a ring of pinned buffers: the host's copying of one
// chunk and the bus's of another go on at once. For backend.cpp, which has one per device.
#pragma once
#include <tapegrad/cuda/runtime/stream.h>

#include <mutex>
#include <vector>

namespace tg::cuda {

class Staging {
 public:
  Staging(size_t chunk, size_t slots) : chunk_(chunk), count_(slots) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // Both return when the copy and all that was queued in the stream before it are done. One copy at a time.
  void to_device(void* to, const void* from, size_t bytes, cudaStream_t);
  void to_host(void* to, const void* from, size_t bytes, cudaStream_t);
  size_t chunk() const { return chunk_; }

 private:
  struct Slot {
    void* pinned;
    Event done;
  };
  bool open();  // false: the system has no memory to pin

  size_t chunk_, count_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
};

}  // namespace tg::cuda
