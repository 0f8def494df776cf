// The allocator of the CPU backend: keeps freed blocks for the next tensor of the same size. One object per process,
// cpu_allocator(); never destroyed, because tensors in static storage may be freed last. Not for users.
// Up to 1 KiB: the slab of <tapegrad/core/util/slab.h>. Above: eight classes per power of two (at most 12.5 % waste),
// common free lists; from 2 MiB on blocks start at 2 MiB and ask for huge pages. Under AddressSanitizer nothing is
// kept.
#pragma once
#include <tapegrad/core/backend/allocator.h>

namespace tg {

class CachingAllocator final : public Allocator {
 public:
  // 64-byte aligned; 0 bytes is a block too. A memory error when the system has no more memory even after
  // empty_cache().
  void* allocate(size_t bytes) override;
  void deallocate(void* p, size_t bytes) noexcept override;
  // live and total count the bytes asked for. What another running thread has not reported yet is missing: at most
  // 64 KiB per counter and thread, in blocks of up to 1 KiB. cached counts the free blocks above 1 KiB only: the chunks
  // of the smaller ones belong to the slab, which the engine's objects share.
  MemoryStats stats() const override;
  void reset_peak() override;
  // Releases the slab too.
  void empty_cache() override;

 private:
  CachingAllocator() = default;
  void* get(size_t bytes);
  void give_back(void* p, size_t bytes) noexcept;
  void* allocate_large(size_t bytes);
  void deallocate_large(void* p, size_t bytes) noexcept;
  friend CachingAllocator& cpu_allocator();
};

CachingAllocator& cpu_allocator();

}  // namespace tg
