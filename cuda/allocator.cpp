#include <tapegrad/cuda/allocator.h>
#include <tapegrad/cuda/runtime.h>

#include <algorithm>

namespace tg::cuda {

void* DeviceAllocator::allocate(size_t bytes) {
  void* p = nullptr;
  check(cudaMallocAsync(&p, std::max<size_t>(bytes, 1), stream_of(device_)), "allocate", "out of memory");
  const std::lock_guard lock(mutex_);
  stats_.live += int64_t(bytes);
  stats_.total += int64_t(bytes);
  stats_.peak = std::max(stats_.peak, stats_.live);
  return p;
}
void DeviceAllocator::deallocate(void* p, size_t bytes) noexcept {
  (void)cudaFreeAsync(p, stream_of(device_));  // fails only at the end of the process or after an error said before
  const std::lock_guard lock(mutex_);
  stats_.live -= int64_t(bytes);
}
MemoryStats DeviceAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}
void DeviceAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak = stats_.live;
}
void DeviceAllocator::empty_cache() {}

}  // namespace tg::cuda
