// Caching allocator of one GPU: freed blocks are reused in stream order, without CUDA calls in the steady state. Never
// destroyed.
#pragma once
#include <tapegrad/core/backend/allocator.h>
#include <tapegrad/cuda/runtime/block_pool.h>
#include <tapegrad/cuda/runtime/stream.h>

#include <mutex>
#include <optional>

namespace tg::cuda {

class DeviceAllocator final : public Allocator {
 public:
  explicit DeviceAllocator(int device) : device_(device) {}
  // 256-byte aligned, for the thread's stream; others need used_on().
  void* allocate(size_t bytes) override;
  void deallocate(void* p, size_t bytes) noexcept override;
  // Exclusive memory for recorded work in `stream`, until give_back(); 256-byte aligned. Runs lose its contents. Works
  // during a capture.
  void* hold(size_t bytes, cudaStream_t stream);
  void give_back(void* p, size_t bytes) noexcept;
  // Delays reuse until work queued in `stream` before deallocate() is done.
  void used_on(const void* p, cudaStream_t stream);
  void name(const void* p, const std::string* label) override;
  MemoryStats stats() const override;
  void reset_peak() override;
  // Waits for the device and for recording threads: an Error(state) after some seconds, or if this thread records.
  void empty_cache() override;

  struct Counts {
    int64_t segments = 0;    // segments held now
    int64_t cuda_calls = 0;  // total cudaMalloc and cudaFree
  };
  Counts counts() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  Block* take(size_t bytes, cudaStream_t, Lock&);
  void give(Block*, size_t bytes);
  Block* grow(size_t bytes, cudaStream_t, Lock&);
  void* segment(size_t bytes);
  void release(Lock&);  // unlocks temporarily
  [[noreturn]] void fail(size_t bytes) const;
  std::string largest_live() const;

  int device_;
  mutable std::mutex mutex_;
  BlockPool pool_;
  std::unordered_multimap<const void*, cudaStream_t> users_;  // other streams that use a block
  std::optional<Event> event_;
  MemoryStats stats_;
  int64_t cuda_calls_ = 0;
};

// Tell the emulator that memory, from this point of the stream, is in use and unwritten, or unused.
void begin_use(void* p, size_t bytes, cudaStream_t);
void end_use(void* p, size_t bytes, cudaStream_t);

}  // namespace tg::cuda
