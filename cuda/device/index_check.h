// Bad indices are skipped and logged in pinned memory; the next synchronisation throws the first one's Error, as on the
// CPU.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <optional>

namespace tg::cuda {

// Run-time i64 or i32 halves the number of kernels.
struct Ids {
  const void* first;
  bool wide;
  Ids(const void* ids, DType d) : first(ids), wide(d == DType::i64) {}
  __device__ __forceinline__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(first)[i] : static_cast<const int32_t*>(first)[i];
  }
};

// An index Error without value and position, interned for ever.
struct IndexSite {
  Error (*error)(const IndexSite&, int64_t position, int64_t value);
  std::string_view op;
  Layout index;
  size_t dim = 0;
  int64_t size = 0;  // valid: [0, size)
  std::optional<int64_t> ignore = {};
};

struct IndexLog {
  static constexpr unsigned kEntries = 256;
  struct Entry {
    const IndexSite* site;  // null: unwritten
    int64_t position, value;
    unsigned long long key;
  };
  struct Counters {  // device memory
    unsigned long long least;
    unsigned used;
  };
  Entry* entries;  // pinned host memory
  Counters* counters;
};

class IndexCheck {
 public:
  IndexCheck(const Context&, const IndexSite&);
  __device__ __forceinline__ bool inside(int64_t id) const { return uint64_t(id) < uint64_t(size_); }
  // True if inside; else logs the id.
  __device__ __forceinline__ bool operator()(int64_t id, int64_t position) const {
    if (!inside(id)) note(id, position);
    return inside(id);
  }
  // Only keys below all earlier ones take an entry: the last entry is the first bad index in row-major order. When
  // entries run out, the oldest are overwritten.
  __device__ __forceinline__ void note(int64_t value, int64_t position) const {
    const unsigned long long key = key_ + static_cast<unsigned long long>(position);
    if (atomicMin(&log_.counters->least, key) <= key) return;
    const unsigned slot = atomicAdd(&log_.counters->used, 1u);
    IndexLog::Entry& e = log_.entries[slot % IndexLog::kEntries];
    e.site = site_, e.position = position, e.value = value, e.key = key;
  }

 private:
  IndexLog log_;
  const IndexSite* site_;
  int64_t size_;
  unsigned long long key_;  // call number in the upper 24 bits
};

}  // namespace tg::cuda
