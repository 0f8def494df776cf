// Indices that a kernel finds to be outside of their range. The kernel skips them and writes them down in memory of the
// host; the next synchronisation with the device throws the Error of the first one, the same as on the CPU. No call
// waits for its check, and a captured graph may hold it: which call comes first is then the order of recording. For
// kernels that read indices; backend.cpp asks for the Error.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <optional>

namespace tg::cuda {

// Indices, i64 or i32: kernels are told at run time, and not compiled for each.
struct Ids {
  const void* first;
  bool wide;
  Ids(const void* ids, DType d) : first(ids), wide(d == DType::i64) {}
  __device__ __forceinline__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(first)[i] : static_cast<const int32_t*>(first)[i];
  }
};

// What the Error of an index says besides its value and position. Interned: one for each distinct use, for ever.
struct IndexSite {
  Error (*error)(const IndexSite&, int64_t position, int64_t value);
  std::string_view op;
  Layout index;
  size_t dim = 0;
  int64_t size = 0;  // valid are [0, size)
  std::optional<int64_t> ignore = {};
};

struct IndexLog {
  static constexpr unsigned kEntries = 256;
  struct Entry {
    const IndexSite* site;  // null: not written
    int64_t position, value;
    unsigned long long key;
  };
  struct Counters {  // in memory of the device
    unsigned long long least;
    unsigned used;
  };
  Entry* entries;  // pinned memory of the host
  Counters* counters;
};

// One call's check, by value to its kernels.
class IndexCheck {
 public:
  IndexCheck(const Context&, const IndexSite&);
  __device__ __forceinline__ bool inside(int64_t id) const { return uint64_t(id) < uint64_t(size_); }
  // The same; an id that is outside is noted as what stands at `position` of the indices.
  __device__ __forceinline__ bool operator()(int64_t id, int64_t position) const {
    if (!inside(id)) note(id, position);
    return inside(id);
  }
  // Only a key below all before it takes an entry, so the last entry taken is that of the first index in row-major
  // order, whatever the order of threads; when entries run out, the oldest and largest are written over.
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
  unsigned long long key_;  // number of the call in the upper 24 bits
};

}  // namespace tg::cuda
