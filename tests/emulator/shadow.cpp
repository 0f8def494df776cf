// Checks that bytes exist and are written, and that their last access happens before this one.
#include <tapegrad/emulator/shadow.h>

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>

#include <tapegrad/emulator/memory.h>
#include <tapegrad/emulator/order.h>

extern "C" char __start_simt_builtin[], __stop_simt_builtin[];  // threadIdx and its like

namespace simt::engine {
namespace {

template <class T> T* reserve(std::size_t n) {
  void* p = mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return static_cast<T*>(p);
}

template <class T, class Before> void remember_read(T (&reads)[2], const T& me, bool again, Before is_before) {
  if (!again && !is_before(reads[0])) reads[1] = reads[0];
  reads[0] = me;
}

// --- shared memory
struct Cell {  // one byte
  Stamp write, reads[2];
  bool operator==(const Cell&) const = default;
};
struct Range {
  std::uintptr_t from = 0, to = 0;
  bool has(std::uintptr_t a) const { return a >= from && a < to; }
};
struct Object {  // a program or shared library with kernels
  Range constants, statics;
  Cell* cells = nullptr;
};
const Object* object;  // holds the running kernel
// Written by the running block; maximum over blocks of the launch.
std::size_t static_bytes;
std::size_t static_most;
std::map<std::uintptr_t, Object>& objects = *new std::map<std::uintptr_t, Object>;
Cell* dynamic_cells;

void conflict(const Stamp& other, bool other_wrote, Access a, std::size_t bytes, Where w) {
  if (other.thread == in_flight)
    fail(Fault::async_copy, w, "%s of %zu bytes of shared memory with an asynchronous copy in flight",
         a == Access::read ? "read" : "write", bytes);
  fail(Fault::race, w, "%s of %zu bytes of shared memory after a %s by thread %u, no barrier between",
       a == Access::read ? "read" : "write", bytes, other_wrote ? "write" : "read", other.thread);
}

void shared_byte(Cell& c, std::size_t bytes, std::size_t nth, Access a, Where w, const Stamp& me) {
  const bool fresh = c.write.epoch >= block_epoch;
  if (a != Access::write && !fresh)
    fail(Fault::uninitialised, w, "read of %zu bytes of shared memory, byte %zu unwritten so far", bytes, nth);
  if (a == Access::atomic) {  // orders nothing, conflicts with nothing
    c.write = me;
    return;
  }
  if (fresh && (c.write.thread == in_flight || !before(c.write))) conflict(c.write, true, a, bytes, w);
  if (a == Access::read) {
    remember_read(c.reads, me, c.reads[0].thread == me.thread, [](const Stamp& s) { return before(s); });
  } else {
    for (const Stamp& r : c.reads)
      if (r.epoch >= block_epoch && !before(r)) conflict(r, false, a, bytes, w);
    c.write = me;
  }
}
void shared_access(Cell* cell, std::size_t bytes, Access a, Where w, const Stamp me) {
  Cell before_it, after_it;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i > 0 && cell[i] == before_it) {
      cell[i] = after_it;
      continue;
    }
    before_it = cell[i];
    shared_byte(cell[i], bytes, i, a, w, me);
    after_it = cell[i];
  }
}

void count_static(const Cell* cell, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) static_bytes += cell[i].write.epoch < block_epoch;
  static_most = std::max(static_most, static_bytes);
}

Cell* cell_of(const void* p) {
  const char* c = static_cast<const char*>(p);
  return c >= dynamic_arena && c < dynamic_arena + max_dynamic_shared
             ? dynamic_cells + (c - dynamic_arena)
             : object->cells + (reinterpret_cast<std::uintptr_t>(p) - object->statics.from);
}

// --- global memory
struct Touch {
  std::uint64_t op : 48, thread : 11, bytes : 4, atomic : 1;  // op: mark of the operation
  std::uint32_t epoch;
  std::uint16_t clock, fence;
  bool same(const Touch& o) const {
    return op == o.op && thread == o.thread && atomic == o.atomic && epoch == o.epoch && clock == o.clock &&
           fence == o.fence;
  }
  bool operator==(const Touch&) const = default;
};
static_assert(sizeof(Touch) == 16);
struct Granule {  // four bytes
  Touch write, reads[2];
  bool operator==(const Granule&) const = default;
};
Granule* granules;

bool block_atomics;                                     // the running block used an atomic
std::vector<std::pair<std::uint32_t, unsigned>> began;  // epoch and index of each block so far
// __threadfence calls per thread: of the running block, and of each ended block that made any.
using Fences = std::array<std::uint16_t, max_threads>;
Fences fences;
bool fenced;
std::map<unsigned, Fences> fences_of;

unsigned block_of(std::uint32_t e) {
  auto it = std::upper_bound(began.begin(), began.end(), std::pair{e, ~0U});
  return it == began.begin() ? 0 : (it - 1)->second;
}
bool fenced_since(unsigned block, const Touch& t) {
  const auto it = fences_of.find(block);
  return it != fences_of.end() && it->second[t.thread] != t.fence;
}
Stamp stamp_of(const Touch& t) { return {t.epoch, static_cast<std::uint16_t>(t.thread), t.clock}; }

void check_pair(const Touch& old, Access a, unsigned bytes, bool old_wrote, const Operation& op, std::uint64_t mark,
                Where w) {
  if (!(old.bytes & bytes) || !old.op) return;
  const char* verb = a == Access::read ? "read" : "write";
  const char* did = old_wrote ? "written" : "read";
  if (old.op != mark) {
    const bool atomics = old.atomic && a == Access::atomic;  // atomics never conflict
    if (!atomics && !comes_before(old.op, op.seen))
      fail(Fault::stream_order, w,
           "%s of memory %s by an operation of another stream, no event or synchronisation between", verb, did);
    return;
  }
  if (!current || (old.atomic && a == Access::atomic)) return;
  if (old.epoch >= block_epoch) {
    if (!old.atomic && a != Access::atomic && !before(stamp_of(old)))
      fail(Fault::race, w, "%s of global memory %s by thread %u of this block, no barrier between", verb, did,
           static_cast<unsigned>(old.thread));
    // After its own atomic, the block may know that the reader is done.
  } else if (!old_wrote) {
    if (!block_atomics)
      fail(Fault::block_race, w, "write of memory read by block %u in this launch", block_of(old.epoch));
  } else if (!old.atomic) {
    const unsigned b = block_of(old.epoch);
    if (!fenced_since(b, old))
      fail(a == Access::read ? Fault::missing_fence : Fault::block_race, w,
           "%s of memory written by block %u in this launch, no __threadfence after it", verb, b);
  }
}

bool check_state(const char* p, std::size_t n, Access a, Where w) {
  const std::uint8_t* state = arena.state + (p - arena.base);
  if (std::all_of(state, state + n, [](std::uint8_t s) { return s == written; })) return true;
  for (std::size_t i = 0; i < n; ++i) {
    if (failed() && !current) return false;
    if (state[i] <= freed)
      fail(Fault::out_of_bounds, w, "%s of %zu bytes of global memory, byte %zu %s",
           a == Access::read ? "read" : "write", n, i, where_is(p + i).c_str());
    if (a != Access::write && state[i] == unwritten && current)
      fail(Fault::uninitialised, w, "read of %zu bytes of global memory, byte %zu unwritten", n, i);
  }
  return false;
}

// False after a fault.
bool granule_access(Granule& x, Access a, unsigned bytes, const Touch& me, const Operation& op, Where w) {
  check_pair(x.write, a, bytes, true, op, me.op, w);
  if (failed()) return false;
  Touch mine = me;
  mine.bytes = bytes & 0xf;
  if (a == Access::read) {
    const bool again = x.reads[0].same(me);
    if (again) mine.bytes |= x.reads[0].bytes;
    remember_read(x.reads, mine, again, [&](const Touch& t) {
      if (t.bytes & ~bytes) return false;  // the earlier access covers other bytes too
      return t.op != me.op ? comes_before(t.op, op.seen) : current && t.epoch >= block_epoch && before(stamp_of(t));
    });
    return true;
  }
  for (const Touch& r : x.reads) check_pair(r, a, bytes, false, op, me.op, w);
  if (x.write.same(me)) mine.bytes |= x.write.bytes;
  x.write = mine;
  return true;
}

}  // namespace

void global_access(const void* address, std::size_t n, Access a, const Operation& op, Where w) {
  const char* p = static_cast<const char*>(address);
  const bool known = check_state(p, n, a, w);
  if (failed()) return;
  if (a != Access::read && !known) mark(p, n, written);
  block_atomics |= a == Access::atomic;
  Touch me{};
  me.op = op.mark();
  me.epoch = epoch;
  if (current) {
    const Stamp s = now();
    me.thread = s.thread & 0x7ff;
    me.clock = s.clock;
    me.fence = fences[current->index];
    me.atomic = a == Access::atomic;
  }
  const auto at = static_cast<std::size_t>(p - arena.base), first = at / 4, last = (at + n - 1) / 4;
  Granule before_it{}, after_it{};
  unsigned bytes_of_it = 0;
  for (std::size_t g = first; g <= last; ++g) {
    Granule& x = granules[g];
    const std::size_t from = std::max(at, g * 4) - g * 4, to = std::min(at + n, g * 4 + 4) - g * 4;
    const unsigned bytes = (1U << to) - (1U << from);
    if (bytes == bytes_of_it && x == before_it) {
      x = after_it;
      continue;
    }
    before_it = x, bytes_of_it = bytes;
    if (!granule_access(x, a, bytes, me, op, w)) return;
    after_it = x;
  }
}

void library_access(const void* p, std::size_t n, Access a, const Operation& op, const char* library) {
  if (failed() || !n) return;
  const char* verb = a == Access::read ? "read" : "write";
  const char* c = static_cast<const char*>(p);
  if (!in_arena(c) || !in_arena(c + n - 1))
    return fail(Fault::host_memory, {}, "%s: %s of %zu bytes at %p, which is not device memory", library, verb, n, p);
  const std::uint8_t* state = arena.state + (c - arena.base);
  for (std::size_t i = 0; i < n; ++i) {
    if (state[i] <= freed)
      return fail(Fault::out_of_bounds, {}, "%s: %s of %zu bytes of device memory, byte %zu %s", library, verb, n, i,
                  where_is(c + i).c_str());
    if (a != Access::write && state[i] == unwritten)
      return fail(Fault::uninitialised, {}, "%s: %s of %zu bytes of device memory, byte %zu unwritten", library, verb,
                  n, i);
  }
  global_access(p, n, a, op, {});
}

bool is_global(const void* p) { return in_arena(p) || is_pinned(p, 1); }
bool is_shared(const void* p) {
  const auto x = reinterpret_cast<std::uintptr_t>(p);
  return x - reinterpret_cast<std::uintptr_t>(dynamic_arena) < max_dynamic_shared || object->statics.has(x);
}

void touch(const void* p, std::size_t n, Access a, const void* pc) {
  if (!current || engine_busy) return;
  const auto x = reinterpret_cast<std::uintptr_t>(p);
  const auto stack = reinterpret_cast<std::uintptr_t>(current->stack);
  if (x - stack < stack_bytes) return;
  ++counters.accesses;
  if (in_arena(p)) {
    const std::size_t unit = n == 2 || n == 4 || n == 8 || n == 16 ? n : 1;
    if (x % unit) fail(Fault::misaligned, pc, "access of %zu bytes at %p", n, p);
    return global_access(p, n, a, *launch_now->op, pc);
  }
  const auto dynamic = reinterpret_cast<std::uintptr_t>(dynamic_arena);
  if (x - dynamic < max_dynamic_shared) {
    if (x - dynamic + n > launch_now->shared_bytes)
      fail(Fault::out_of_bounds, pc, "access at byte %zu of %zu bytes of dynamic shared memory",
           static_cast<std::size_t>(x - dynamic), launch_now->shared_bytes);
    return shared_access(dynamic_cells + (x - dynamic), n, a, pc, now());
  }
  static const Range builtins{reinterpret_cast<std::uintptr_t>(__start_simt_builtin),
                              reinterpret_cast<std::uintptr_t>(__stop_simt_builtin)};
  if (builtins.has(x)) return;
  if (object->statics.has(x)) {
    if (a != Access::read) count_static(cell_of(p), n);
    return shared_access(cell_of(p), n, a, pc, now());
  }
  const auto args = reinterpret_cast<std::uintptr_t>(launch_now->call.self.get());
  if (a == Access::read && (object->constants.has(x) || x - args < launch_now->call.bytes)) return;
  if (is_pinned(p, n)) return;  // mapped, unchecked
  fail(Fault::host_memory, pc, "%s of %zu bytes at %p, which no kernel thread may touch",
       a == Access::read ? "read" : "write", n, p);
}

// --- launches and blocks
namespace {
struct Search {
  std::uintptr_t address;
  Object found;
};
int object_of(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  Range all{~std::uintptr_t{0}, 0}, writable;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& h = info->dlpi_phdr[i];
    if (h.p_type != PT_LOAD) continue;
    const Range r{info->dlpi_addr + h.p_vaddr, info->dlpi_addr + h.p_vaddr + h.p_memsz};
    all = {std::min(all.from, r.from), std::max(all.to, r.to)};
    if (h.p_flags & PF_W) writable = r;
  }
  if (!all.has(search.address)) return 0;
  search.found = {all, writable, nullptr};
  return 1;
}
}  // namespace

void shadow_launch(const Launch& l) {
  if (!dynamic_cells) dynamic_cells = reserve<Cell>(max_dynamic_shared);
  const auto kernel = reinterpret_cast<std::uintptr_t>(l.call.kernel);
  if (!object || !object->constants.has(kernel)) {
    Search search{kernel, {}};
    dl_iterate_phdr(object_of, &search);
    Object& o = objects.try_emplace(search.found.constants.from, search.found).first->second;
    if (!o.cells) o.cells = reserve<Cell>(o.statics.to - o.statics.from);
    object = &o;
  }
  if (order_restart()) {
    for (auto& [at, o] : objects) madvise(o.cells, (o.statics.to - o.statics.from) * sizeof(Cell), MADV_DONTNEED);
    madvise(dynamic_cells, max_dynamic_shared * sizeof(Cell), MADV_DONTNEED);
  }
  fences_of.clear();
  fenced = false;
  began.clear();
  static_most = 0;
}
std::size_t static_shared() { return static_most; }

void shadow_block() {
  if (fenced) fences_of[began.back().second] = fences;
  fences.fill(0);
  fenced = block_atomics = false;
  static_bytes = 0;
  order_begin();
  began.emplace_back(epoch, block_now);
}

void fence() {
  ++fences[current->index];
  fenced = true;
}

void async_begin(char* to, unsigned bytes) {
  if (object->statics.has(reinterpret_cast<std::uintptr_t>(to))) count_static(cell_of(to), bytes);
  std::for_each_n(cell_of(to), bytes, [](Cell& c) { c.write = {epoch, in_flight, 0}; });
}
void async_end(char* to, unsigned bytes, unsigned unit) {
  std::for_each_n(cell_of(to), bytes, [=](Cell& c) { c.write = now(unit); });
}
void unit_read(const void* p, std::size_t n, unsigned unit, Where w) {
  for (const Cell* c = cell_of(p); c < cell_of(p) + n; ++c)
    if (c->write.thread < max_threads && c->write.epoch >= block_epoch && !async_fenced(c->write))
      fail(Fault::missing_fence, w, "wgmma reads shared memory that thread %u wrote, no async_fence after it",
           c->write.thread);
  shared_access(cell_of(p), n, Access::read, w, now(unit));
}

void shadow_memory(std::size_t bytes) { granules = reserve<Granule>(bytes / 4); }

void forget_history(std::size_t offset, std::size_t bytes) {
  madvise(granules + offset / 4, bytes / 4 * sizeof(Granule), MADV_DONTNEED);
}

}  // namespace simt::engine
