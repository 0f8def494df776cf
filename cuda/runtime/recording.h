// Kernel calls as one CUDA graph. Each is a child graph: changed arguments capture one call again. Values that change
// per step are in memory written before launches.
#pragma once
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/cuda/runtime/runtime.h>

#include <functional>
#include <map>
#include <unordered_map>

namespace tg::cuda {

class HeldMemory {
 public:
  // Recorded in one stream, runs in the other, or concurrently with it.
  HeldMemory(DeviceAllocator& a, cudaStream_t recorded, cudaStream_t order, bool concurrent = false)
      : allocator_(a), recorded_(recorded), order_(order), concurrent_(concurrent) {}
  ~HeldMemory();
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  void* take(size_t bytes);
  void give(void* p, size_t bytes) noexcept;
  size_t bytes() const { return total_; }
  cudaStream_t order() const { return order_; }
  bool concurrent() const { return concurrent_; }

 private:
  DeviceAllocator& allocator_;
  cudaStream_t recorded_, order_;
  bool concurrent_;
  size_t total_ = 0;
  std::multimap<size_t, void*> free_;      // sizes and blocks
  std::unordered_map<void*, size_t> all_;  // sizes
};
// Scratch memory while the thread records, else null.
HeldMemory* held_memory();

using FillValues = std::function<void(const Op&, std::byte* to)>;
// While the thread records: device memory that each launch fills by fill() with the op of its step; else null. Kernels
// must take all such values from it.
const void* recorded_values(const Op&, size_t bytes, FillValues fill);

std::unique_ptr<Recording> record_calls(int device, std::vector<CallOrder>, std::function<void(size_t)> call);

}  // namespace tg::cuda
