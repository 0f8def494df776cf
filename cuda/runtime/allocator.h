// The allocator of one GPU: caches what tensors free and hands it out again in the order of the stream, without a call
// of CUDA once it has grown to what a program needs. Made by backend.cpp, one per device, never destroyed. Not for
// users, who read memory_stats() and empty_cache().
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
  // 256-byte aligned at least. The bytes belong to the calling thread's stream: work of other streams needs used_on().
  void* allocate(size_t bytes) override;
  // May be used again by work that is queued in that stream from now on.
  void deallocate(void* p, size_t bytes) noexcept override;
  // Memory for work that is recorded and runs again and again in `stream`, 256-byte aligned: nobody else gets it until
  // give_back(), and what it holds is lost between runs. While a stream captures, too.
  void* hold(size_t bytes, cudaStream_t stream);
  void give_back(void* p, size_t bytes) noexcept;
  // Work queued in `stream` so far or later, before deallocate(), uses the block at p, and is waited for.
  void used_on(const void* p, cudaStream_t stream);
  void name(const void* p, const std::string* label) override;
  MemoryStats stats() const override;
  void reset_peak() override;
  // Waits for the device, and for other threads that record graphs: some seconds at most, then it is an Error(state),
  // as it is while the calling thread records.
  void empty_cache() override;

  struct Counts {
    int64_t segments = 0;    // held now
    int64_t cuda_calls = 0;  // ever, of cudaMalloc and cudaFree
  };
  Counts counts() const;

 private:
  // These need the lock.
  using Lock = std::unique_lock<std::mutex>;
  Block* take(size_t bytes, cudaStream_t, Lock&);
  void give(Block*, size_t bytes);
  Block* grow(size_t bytes, cudaStream_t, Lock&);
  void* segment(size_t bytes);
  void release(Lock&);  // gives the lock up for a while
  [[noreturn]] void fail(size_t bytes) const;
  std::string largest_live() const;

  int device_;
  mutable std::mutex mutex_;
  BlockPool pool_;
  std::unordered_multimap<const void*, cudaStream_t> users_;  // other streams
  std::optional<Event> event_;
  MemoryStats stats_;
  int64_t cuda_calls_ = 0;
};

// For the emulator, which checks accesses against blocks: from now on in the stream's order, held memory is in use and
// nothing is written in it; it is not.
void begin_use(void* p, size_t bytes, cudaStream_t);
void end_use(void* p, size_t bytes, cudaStream_t);

}  // namespace tg::cuda
