#include <tapegrad/emulator/memory.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

#include <tapegrad/emulator/shadow.h>

namespace simt::engine {

Arena arena;

namespace {

constexpr std::size_t card = std::size_t{4} << 30;
constexpr std::size_t page = 4096, gap = 16 * 1024;        // smaller overruns hit no allocation
constexpr std::size_t quarantine = std::size_t{64} << 20;  // bytes kept from reuse

struct Free {
  std::size_t bytes;
  Counts after;  // operations that precede the reuse
};
// Leaked: static objects may free last.
struct Memory {
  std::map<const char*, std::size_t> allocations, pinned;
  std::map<char*, Free> free;
  std::deque<std::pair<char*, Free>> resting;
  std::size_t rest_bytes = 0, in_use = 0, capacity = card;
};
Memory& memory = *new Memory;

std::size_t room_of(std::size_t n) { return (n + page - 1) / page * page + gap; }

// Protection keys cost nothing; page protection is slow in small pages.
int key = -1;
constexpr std::size_t huge = 2 << 20;

std::size_t up_to_huge(std::size_t n) { return (n + huge - 1) / huge * huge; }
void protect(int how) { mprotect(arena.base, up_to_huge(arena.used), how); }

void make_arena() {
  const auto map = [](std::size_t bytes, int how) {
    return mmap(nullptr, bytes, how, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  arena.size = std::size_t{16} << 30;
  arena.used = gap;
  auto* const anywhere = static_cast<char*>(map(arena.size + huge, PROT_NONE));
  arena.base =
      anywhere + up_to_huge(reinterpret_cast<std::uintptr_t>(anywhere)) - reinterpret_cast<std::uintptr_t>(anywhere);
  arena.state = static_cast<std::uint8_t*>(map(arena.size, PROT_READ | PROT_WRITE));
  shadow_memory(arena.size);
  key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  if (key >= 0 && pkey_mprotect(arena.base, arena.size, PROT_READ | PROT_WRITE, key) != 0) key = -1;
  if (key < 0) madvise(arena.base, arena.size, MADV_HUGEPAGE);
}

bool known(const Counts& after, const Counts& seen) {
  for (std::size_t i = 0; i < after.size(); ++i)
    if (after[i] > (i < seen.size() ? seen[i] : 0)) return false;
  return true;
}

void wake() {
  auto [p, range] = std::move(memory.resting.front());
  memory.resting.pop_front();
  memory.rest_bytes -= range.bytes;
  auto next = memory.free.lower_bound(p);
  if (next != memory.free.end() && p + range.bytes == next->first) {
    range.bytes += next->second.bytes;
    join(range.after, next->second.after);
    next = memory.free.erase(next);
  }
  if (next != memory.free.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second.bytes == p) {
      previous->second.bytes += range.bytes;
      join(previous->second.after, range.after);
      return;
    }
  }
  memory.free.emplace(p, std::move(range));
}

char* take_free(std::size_t room, const Counts& seen) {
  for (auto it = memory.free.begin(); it != memory.free.end(); ++it) {
    auto& [p, range] = *it;
    if (range.bytes < room || !known(range.after, seen)) continue;
    char* const found = p;
    Free rest{range.bytes - room, std::move(range.after)};
    memory.free.erase(it);
    if (rest.bytes) memory.free.emplace(found + room, std::move(rest));
    return found;
  }
  return nullptr;
}

bool inside(const std::map<const char*, std::size_t>& m, const char* p, std::size_t n) {
  auto it = m.upper_bound(p);
  return it != m.begin() && p + n <= (--it)->first + it->second;
}

// Returns pages to the system, in units of 2 MiB if protection is per huge page.
void clear(char* p, std::size_t n) {
  const std::size_t at = static_cast<std::size_t>(p - arena.base), whole = (n + page - 1) / page * page;
  const std::size_t from = key < 0 ? up_to_huge(at) : at, to = key < 0 ? (at + whole) / huge * huge : at + whole;
  forget_history(at, whole);
  if (from < to) madvise(arena.base + from, to - from, MADV_DONTNEED);
  madvise(arena.state + at, whole, MADV_DONTNEED);
}

}  // namespace

void mark(const void* p, std::size_t n, Byte state) {
  std::memset(arena.state + (static_cast<const char*>(p) - arena.base), state, n);
}

Open::Open() {
  if (!arena.base) return;
  if (key >= 0)
    pkey_set(key, 0);
  else
    protect(PROT_READ | PROT_WRITE);
}
Open::~Open() {
  if (!arena.base) return;
  if (key >= 0)
    pkey_set(key, PKEY_DISABLE_ACCESS);
  else
    protect(PROT_NONE);
}

char* allocate(std::size_t n, const Counts& seen) {
  if (!arena.base) make_arena();
  if (n > memory.capacity || memory.in_use > memory.capacity - n) return nullptr;
  const std::size_t room = room_of(n);
  while (memory.rest_bytes > quarantine) wake();
  char* p = take_free(room, seen);
  if (!p && arena.used + room > arena.size) {
    while (!memory.resting.empty()) wake();
    p = take_free(room, seen);
    if (!p) return nullptr;
  } else if (!p) {
    p = arena.base + arena.used;
    arena.used += room;
  }
  memory.in_use += n;
  memory.allocations[p] = n;
  return p;
}

bool is_allocation(const void* p) {
  if (memory.allocations.contains(static_cast<const char*>(p))) return true;
  fail(Fault::usage, {}, "free of %p, not an allocation", p);
  return false;
}

void open_memory(char* p, std::size_t n, const Operation* op) {
  if (!n) return;
  mark(p, n, unwritten);
  std::memset(p, 0xff, n);  // NaN in every floating-point type
  if (!op) return;
  global_access(p, n, Access::write, *op, {});
  mark(p, n, unwritten);
}

void close_memory(char* p, const Operation* op) {
  const auto it = memory.allocations.find(p);
  if (it == memory.allocations.end()) return fail(Fault::usage, {}, "%p is freed twice", static_cast<void*>(p));
  const std::size_t n = it->second;
  if (op && n) global_access(p, n, Access::write, *op, {});
  memory.allocations.erase(it);
  memory.in_use -= n;
  clear(p, n);
  const std::size_t room = room_of(n);
  memory.resting.emplace_back(p, Free{room, op ? op->seen : Counts{}});
  memory.rest_bytes += room;
}

std::string where_is(const void* address) {
  const char* p = static_cast<const char*>(address);
  const auto it = memory.allocations.upper_bound(p);
  if (it != memory.allocations.begin()) {
    const auto& [start, n] = *std::prev(it);
    const auto at = static_cast<std::size_t>(p - start);
    if (at < n) return "not yet allocated, or freed";
    if (at < room_of(n))
      return std::to_string(at - n) + " bytes past the end of an allocation of " + std::to_string(n) + " bytes";
  }
  const bool was =
      std::ranges::any_of(memory.resting, [&](const auto& r) { return p >= r.first && p < r.first + r.second.bytes; });
  return was ? "freed" : "outside every allocation";
}

void* allocate_pinned(std::size_t n) {
  char* p = static_cast<char*>(std::malloc(n ? n : 1));
  if (p) memory.pinned[p] = n;
  return p;
}
void free_pinned(void* p) {
  if (!p) return;
  if (!memory.pinned.erase(static_cast<char*>(p)))
    return fail(Fault::usage, {}, "cudaFreeHost of %p, not an allocation of cudaMallocHost", p);
  std::free(p);
}
bool is_pinned(const void* p, std::size_t n) { return inside(memory.pinned, static_cast<const char*>(p), n); }

void memory_left(std::size_t* free, std::size_t* total) {
  *total = memory.capacity;
  *free = memory.capacity - std::min(memory.in_use, memory.capacity);
}
void set_capacity(std::size_t bytes) { memory.capacity = bytes; }

void memory_reset() {
  for (const auto& [p, n] : memory.pinned) std::free(const_cast<char*>(p));
  memory = {};
  if (!arena.base) return;
  forget_history(0, arena.used);
  madvise(arena.base, up_to_huge(arena.used), MADV_DONTNEED);
  madvise(arena.state, arena.used, MADV_DONTNEED);
  if (key < 0) protect(PROT_NONE);
  arena.used = gap;
}

}  // namespace simt::engine
