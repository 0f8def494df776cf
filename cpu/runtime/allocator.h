// Keeps freed blocks for the next tensor of the same size. cpu_allocator() is the one object, never destroyed: static
// tensors may be freed last. Up to 1 KiB: the slab of <tapegrad/core/util/slab.h>. Above: shared free lists of eight
// classes per power of two (at most 12.5 % waste). Blocks from 2 MiB on are 2 MiB aligned and ask for huge pages.
// AddressSanitizer builds keep nothing.
#pragma once
#include <tapegrad/core/backend/allocator.h>

namespace tg {

class CachingAllocator final : public Allocator {
 public:
  // 64-byte aligned, even for 0 bytes. A memory error when empty_cache() frees too little.
  void* allocate(size_t bytes) override;
  void deallocate(void* p, size_t bytes) noexcept override;
  // live and total count requested bytes, without what other running threads have not reported: at most 64 KiB per
  // counter and thread, in blocks of up to 1 KiB. cached counts only blocks above 1 KiB: the engine's objects share the
  // slab, which empty_cache() leaves.
  MemoryStats stats() const override;
  void reset_peak() override;
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
