// Blocks of chunks are in magazines, two per thread and class. Threads exchange magazines with shared lists: one lock
// per 64 KiB.
#include <tapegrad/core/util/slab.h>

#include <mutex>
#include <new>
#include <utility>

namespace tg {
namespace {
constexpr size_t kUnit = 64, kClasses = kSlabMax / kUnit;
constexpr size_t kChunk = 64 << 10;
// Room for malloc's header makes chunks adjacent. Without the unit before the blocks, lazy replays take 10 % longer.
constexpr size_t kChunkUsed = kChunk - 2 * kUnit;

struct Block {  // a free block
  Block* next;
  // next_magazine and bytes: only in the first block of a magazine in a shared list.
  Block* next_magazine;
  size_t bytes;
};
struct Magazine {
  Block* head = nullptr;
  size_t bytes = 0;

  void push(void* p, size_t size) {
    Block* b = ::new (p) Block;
    b->next = std::exchange(head, b);
    bytes += size;
  }
  Block* pop(size_t size) {
    bytes -= size;
    return std::exchange(head, head->next);
  }
};

// A thread's state, without destructor: usable during its whole life.
struct ThreadSlabs {
  Magazine active[kClasses], spare[kClasses];
  // Capacity of a magazine. 0 before enter() and after the thread: all blocks go to refill or spill.
  size_t full = 0;
  bool entered = false;  // the destructor at thread end is registered
};
constinit thread_local ThreadSlabs t_slabs;

struct SharedSlabs {  // callers hold the lock
  std::mutex mutex;
  Block* magazines[kClasses] = {};
  int64_t chunks = 0;

  void put(size_t c, Magazine& m) {
    if (!m.head) return;
    m.head->bytes = m.bytes;
    m.head->next_magazine = std::exchange(magazines[c], m.head);
    m = {};
  }
  Magazine take(size_t c) {
    Block* b = magazines[c];
    if (!b) return {};
    magazines[c] = b->next_magazine;
    return {b, b->bytes};
  }
};
SharedSlabs& shared_slabs() {  // never destroyed: static tensors may end last
  static SharedSlabs& g = *new SharedSlabs;
  return g;
}
void give_back(ThreadSlabs& t) {
  std::lock_guard lock(shared_slabs().mutex);
  for (size_t c = 0; c < kClasses; ++c) {
    shared_slabs().put(c, t.active[c]);
    shared_slabs().put(c, t.spare[c]);
  }
}
void enter(ThreadSlabs& t) {
  if (t.entered) return;
  struct AtEnd {
    ~AtEnd() {
      t_slabs.full = 0;
      give_back(t_slabs);
    }
  };
  thread_local AtEnd at_end;
  (void)at_end;
  t.full = kChunkUsed;
  t.entered = true;
}

Magazine new_chunk(size_t size) {
  auto* p = static_cast<std::byte*>(::operator new(kUnit + kChunkUsed, std::align_val_t(kChunk)));
  Magazine m;
  for (size_t i = kChunkUsed / size; i-- > 0;) m.push(p + kUnit + i * size, size);
  std::lock_guard lock(shared_slabs().mutex);
  ++shared_slabs().chunks;
  return m;
}
// Allocates if the active magazine is empty.
[[gnu::noinline]] void* refill(ThreadSlabs& t, size_t c) {
  enter(t);
  Magazine& m = t.active[c] = std::exchange(t.spare[c], {});
  if (!m.head) {
    std::lock_guard lock(shared_slabs().mutex);
    m = shared_slabs().take(c);
  }
  const size_t size = (c + 1) * kUnit;
  if (!m.head) m = new_chunk(size);
  void* p = m.pop(size);
  if (!t.full) give_back(t);
  return p;
}
// Frees if the active magazine is full.
[[gnu::noinline]] void spill(ThreadSlabs& t, size_t c, void* p) {
  enter(t);
  if (t.spare[c].head) {
    std::lock_guard lock(shared_slabs().mutex);
    shared_slabs().put(c, t.spare[c]);
  }
  t.spare[c] = std::exchange(t.active[c], {});
  t.active[c].push(p, (c + 1) * kUnit);
  if (!t.full) give_back(t);
}

size_t class_of(size_t bytes) { return (bytes - (bytes != 0)) / kUnit; }
}  // namespace

void* detail::slab_alloc(size_t bytes) {
  if (kPlainMemory || bytes > kSlabMax) return ::operator new(bytes, std::align_val_t(kUnit));
  const size_t c = class_of(bytes);
  Magazine& m = t_slabs.active[c];
  return m.head ? m.pop((c + 1) * kUnit) : refill(t_slabs, c);
}
void detail::slab_free(void* p, size_t bytes) noexcept {
  if (kPlainMemory || bytes > kSlabMax) return ::operator delete(p, std::align_val_t(kUnit));
  const size_t c = class_of(bytes);
  Magazine& m = t_slabs.active[c];
  if (m.bytes >= t_slabs.full) return spill(t_slabs, c, p);
  m.push(p, (c + 1) * kUnit);
}
int64_t detail::slab_bytes() {
  std::lock_guard lock(shared_slabs().mutex);
  return shared_slabs().chunks * int64_t(kChunk);
}
}  // namespace tg
