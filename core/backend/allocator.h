// Allocator: the memory of Storage, one per device. Its backend owns it; it lives until the process ends, because
// static tensors may be freed last. Users call memory_stats() of backend.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace tg {

struct MemoryStats {
  int64_t live = 0;    // bytes of existing tensors
  int64_t peak = 0;    // maximal live since the last reset_peak()
  int64_t cached = 0;  // bytes kept for reuse, not in live
  int64_t total = 0;   // bytes allocated since the process began
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  // At least `bytes` bytes, 64-byte aligned, never null; an Error when memory is exhausted.
  virtual void* allocate(size_t bytes) = 0;
  virtual void deallocate(void* p, size_t bytes) noexcept = 0;  // bytes as passed to allocate
  // p holds the tensor with this label (an interned string), for messages about memory.
  virtual void name(const void* /*p*/, const std::string* /*label*/) {}
  virtual MemoryStats stats() const = 0;
  virtual void reset_peak() = 0;
  virtual void empty_cache() = 0;  // returns cached memory to the system
};

}  // namespace tg
