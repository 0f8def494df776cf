// Allocator: where the bytes of a Storage come from. One object per device, owned by its backend, alive until the
// process ends (tensors in static storage may be freed last). Not for users; they read memory_stats() of backend.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace tg {

struct MemoryStats {
  int64_t live = 0;    // bytes of tensors that exist now
  int64_t peak = 0;    // largest live since the last reset_peak()
  int64_t cached = 0;  // bytes kept for reuse, not part of live
  int64_t total = 0;   // bytes handed out since the process began
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  // At least `bytes` bytes, 64-byte aligned, never null; an Error when memory is exhausted.
  virtual void* allocate(size_t bytes) = 0;
  virtual void deallocate(void* p, size_t bytes) noexcept = 0;  // bytes as passed to allocate
  // p, of allocate(), holds the tensor of this label (an interned string): for messages about memory.
  virtual void name(const void* /*p*/, const std::string* /*label*/) {}
  virtual MemoryStats stats() const = 0;
  virtual void reset_peak() = 0;
  virtual void empty_cache() = 0;  // returns what is cached to the system
};

}  // namespace tg
