// The allocator of one GPU: stream-ordered. Made by backend.cpp, one per device, never destroyed. Not for users.
#pragma once
#include <tapegrad/core/allocator.h>
#include <tapegrad/cuda/api.h>

#include <mutex>

namespace tg::cuda {

class DeviceAllocator final : public Allocator {
 public:
  explicit DeviceAllocator(int device) : device_(device) {}
  // 256-byte aligned at least, ordered on the calling thread's stream.
  void* allocate(size_t bytes) override;
  void deallocate(void* p, size_t bytes) noexcept override;
  MemoryStats stats() const override;
  void reset_peak() override;
  void empty_cache() override;

 private:
  int device_;
  mutable std::mutex mutex_;
  MemoryStats stats_;
};

}  // namespace tg::cuda
