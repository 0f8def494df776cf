// Small blocks (all when kPlainMemory) come from the slab, counted per thread. Larger ones have a shared free list per
// class.
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/profile/profiler_record.h>
#include <tapegrad/core/util/slab.h>
#include <tapegrad/cpu/runtime/allocator.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace tg {
namespace {
constexpr std::align_val_t kAlign{64};
constexpr size_t kHuge = 2 << 20;
// ASan's limit; else the address space.
constexpr size_t kMaxBytes = size_t(1) << (kPlainMemory ? 40 : 47);
constexpr size_t kLargeClasses = (47 - 10) * 8;
static_assert(kSlabMax == 1 << 10);
constexpr int64_t kPending = 64 << 10;

struct Free {
  Free* next;
};

// Unreported counts of small blocks; high: peak of live. No destructor: usable even at thread exit.
struct Local {
  int64_t live = 0, high = 0, total = 0;
  // Total to report at. 0: exit hook not registered yet; -1: it has run.
  int64_t limit = 0;
};
constinit thread_local Local t_local;

struct Global {
  std::mutex mutex;
  Free* large[kLargeClasses] = {};
  int64_t live = 0, peak = 0, total = 0, cached = 0;

  void flush(Local& t) {
    peak = std::max(peak, live + t.high);
    live += t.live;
    total += t.total;
    t.live = t.high = t.total = 0;
  }
  void count(size_t bytes) {
    live += int64_t(bytes);
    total += int64_t(bytes);
    peak = std::max(peak, live);
  }
};
Global& global() {
  static Global& g = *new Global;
  return g;
}

[[gnu::noinline]] void report(Local& t) {
  if (t.limit == 0) {
    struct AtEnd {
      ~AtEnd() {
        t_local.limit = -1;
        report(t_local);
      }
    };
    thread_local AtEnd at_end;
    (void)at_end;
    t.limit = kPending;
  }
  std::lock_guard lock(global().mutex);
  global().flush(t);
}

struct LargeClass {
  size_t index, bytes;
};
// (2^k, 2^(k+1)] rounds up to multiples of 2^k / 8.
LargeClass large_class(size_t bytes) {
  const int k = std::bit_width(bytes - 1) - 1;
  const size_t step = size_t(1) << (k - 3), steps = (bytes - 1) / step + 1;
  return {size_t(k - 10) * 8 + steps - 9, steps * step};
}
void* system_allocate(size_t bytes) {
#ifdef __linux__
  if (bytes >= kHuge) {  // malloc may keep freed memory
    void* m = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) throw std::bad_alloc();
    auto* const raw = static_cast<std::byte*>(m);
    const size_t before = -reinterpret_cast<uintptr_t>(m) & (kHuge - 1);
    if (before) munmap(raw, before);
    munmap(raw + before + bytes, kHuge - before);
    (void)madvise(raw + before, bytes, MADV_HUGEPAGE);  // a hint: may fail
    return raw + before;
  }
#endif
  return ::operator new(bytes, kAlign);
}
void system_free(void* p, [[maybe_unused]] size_t bytes) noexcept {
#ifdef __linux__
  if (bytes >= kHuge) return void(munmap(p, bytes));
#endif
  ::operator delete(p, kAlign);
}

[[noreturn]] void out_of_memory(size_t bytes) {
  const MemoryStats s = cpu_allocator().stats();
  detail::fail(
      Error::Kind::memory,
      fmt::format("[allocator] out of memory: {} bytes requested, live {}, cached {}. The system has no more memory, "
                  "or the size exceeds its address space. Check the shape, use a smaller batch, or release tensors.",
                  bytes, s.live, s.cached));
}
// Retries once with an empty cache after std::bad_alloc. bytes: for the Error.
template <class F> void* get_or_fail(size_t bytes, F get) {
  try {
    return get();
  } catch (const std::bad_alloc&) {
    cpu_allocator().empty_cache();
  }
  try {
    return get();
  } catch (const std::bad_alloc&) {
    out_of_memory(bytes);
  }
}
}  // namespace

void* CachingAllocator::allocate(size_t bytes) {
  if (!detail::profiling()) [[likely]]
    return get(bytes);
  const int64_t begin = detail::profiler_clock();
  void* p = get(bytes);
  detail::note_call("allocate", begin);
  detail::note_memory(Device(), int64_t(bytes));
  return p;
}
void CachingAllocator::deallocate(void* p, size_t bytes) noexcept {
  if (!detail::profiling()) [[likely]]
    return give_back(p, bytes);
  const int64_t begin = detail::profiler_clock();
  give_back(p, bytes);
  detail::note_call("deallocate", begin);
  detail::note_memory(Device(), -int64_t(bytes));
}
void* CachingAllocator::get(size_t bytes) {
  if (bytes > kMaxBytes) out_of_memory(bytes);
  if (!kPlainMemory && bytes > kSlabMax) return allocate_large(bytes);
  void* p = get_or_fail(bytes, [=] { return tg::detail::slab_alloc(bytes); });
  Local& t = t_local;
  t.live += int64_t(bytes);
  t.total += int64_t(bytes);
  t.high = std::max(t.high, t.live);
  if (t.total >= t.limit) [[unlikely]]
    report(t);
  return p;
}
void CachingAllocator::give_back(void* p, size_t bytes) noexcept {
  if (!kPlainMemory && bytes > kSlabMax) return deallocate_large(p, bytes);
  tg::detail::slab_free(p, bytes);
  Local& t = t_local;
  t.live -= int64_t(bytes);
  if (t.live <= -t.limit) [[unlikely]]
    report(t);
}

void* CachingAllocator::allocate_large(size_t bytes) {
  const LargeClass k = large_class(bytes);
  Global& g = global();
  {
    std::lock_guard lock(g.mutex);
    g.flush(t_local);
    if (Free* f = g.large[k.index]) {
      g.large[k.index] = f->next;
      g.cached -= int64_t(k.bytes);
      g.count(bytes);
      return f;
    }
  }
  void* p = get_or_fail(bytes, [=] { return system_allocate(k.bytes); });
  std::lock_guard lock(g.mutex);
  g.count(bytes);
  return p;
}
void CachingAllocator::deallocate_large(void* p, size_t bytes) noexcept {
  const LargeClass k = large_class(bytes);
  Global& g = global();
  std::lock_guard lock(g.mutex);
  g.flush(t_local);  // peak above the current live bytes
  g.live -= int64_t(bytes);
  g.large[k.index] = ::new (p) Free{g.large[k.index]};
  g.cached += int64_t(k.bytes);
}

MemoryStats CachingAllocator::stats() const {
  Global& g = global();
  std::lock_guard lock(g.mutex);
  g.flush(t_local);
  return {g.live, g.peak, g.cached, g.total};
}
void CachingAllocator::reset_peak() {
  Global& g = global();
  std::lock_guard lock(g.mutex);
  g.flush(t_local);
  g.peak = g.live;
}
void CachingAllocator::empty_cache() {
  Global& g = global();
  Free* blocks[kLargeClasses];
  {
    std::lock_guard lock(g.mutex);
    for (size_t k = 0; k < kLargeClasses; ++k) blocks[k] = std::exchange(g.large[k], nullptr);
    g.cached = 0;
  }
  for (size_t k = 0; k < kLargeClasses; ++k) {
    const size_t bytes = (9 + k % 8) << (k / 8 + 10 - 3);
    while (Free* f = blocks[k]) {
      blocks[k] = f->next;
      system_free(f, bytes);
    }
  }
}

CachingAllocator& cpu_allocator() {
  static CachingAllocator& a = *new CachingAllocator;
  return a;
}
}  // namespace tg
