// Allocator: the memory of Storage, one per device. It lives until the process ends: static tensors may be freed last.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace tg {

struct MemoryStats {
  int64_t live = 0;    // bytes of existing tensors
  int64_t peak = 0;    // maximal live since reset_peak()
  int64_t cached = 0;  // bytes for reuse, not in live
  int64_t total = 0;   // bytes allocated in this process
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  // At least `bytes` bytes, 64-byte aligned, never null; an Error out of memory.
  virtual void* allocate(size_t bytes) = 0;
  virtual void deallocate(void* p, size_t bytes) noexcept = 0;
  // The (interned) label of p's tensor, for messages.
  virtual void name(const void* /*p*/, const std::string* /*label*/) {}
  virtual MemoryStats stats() const = 0;
  virtual void reset_peak() = 0;
  virtual void empty_cache() = 0;  // frees cached memory
};

}  // namespace tg
