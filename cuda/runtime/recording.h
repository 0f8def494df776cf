// Calls of kernels as one CUDA graph: each call is captured to a child graph, so that one whose arguments changed is
// captured again, and the others stay. What changes in an op from step to step lies in memory that is written before
// each launch. For backend.cpp, which offers it to compile(), and what asks whether it is on.
#pragma once
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/cuda/runtime/runtime.h>

#include <functional>
#include <map>
#include <unordered_map>

namespace tg::cuda {

// Device memory that belongs to a branch of a recording, and is used again within it: its calls run one after the
// other.
class HeldMemory {
 public:
  // Recorded in the one stream, to run in the other, or beside what runs in it.
  HeldMemory(DeviceAllocator& a, cudaStream_t recorded, cudaStream_t order, bool beside = false)
      : allocator_(a), recorded_(recorded), order_(order), beside_(beside) {}
  ~HeldMemory();
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  void* take(size_t bytes);
  void give(void* p, size_t bytes) noexcept;
  size_t bytes() const { return total_; }
  cudaStream_t order() const { return order_; }
  bool beside() const { return beside_; }

 private:
  DeviceAllocator& allocator_;
  cudaStream_t recorded_, order_;
  bool beside_;
  size_t total_ = 0;
  std::multimap<size_t, void*> free_;      // by size
  std::unordered_map<void*, size_t> all_;  // their sizes
};
// While the calling thread records: where scratch memory comes from. Else null.
HeldMemory* held_memory();

// Sets the values of an op from the op of a step.
using FillValues = std::function<void(const Op&, std::byte* to)>;
// While the calling thread records: device memory whose content each launch finds as fill() gives it for the op of that
// step. Else null. A kernel that takes some takes all that changes so.
const void* recorded_values(const Op&, size_t bytes, FillValues fill);

std::unique_ptr<Recording> record_calls(int device, std::vector<CallOrder>, std::function<void(size_t)> call);

}  // namespace tg::cuda
