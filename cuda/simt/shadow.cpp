// Shadow memory: which bytes exist and are written, who touched them last, and whether that is
// ordered before the access at hand.  Kernels are compiled with -fsanitize=thread, whose calls
// before every load and store end here (no thread sanitizer runtime is linked).
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include <tapegrad/cuda/simt/internal.h>

namespace simt::engine {

Arena arena;
std::vector<Op> ops(1);

// --- order within a block: vector clocks since the last barrier of the whole block -----------------
namespace {

constexpr std::uint16_t in_flight = 0xffff;  // the "thread" of an asynchronous copy

std::uint32_t epoch = 1;        // grows at each barrier of a block and at each block's begin
std::uint32_t block_epoch = 1;  // the epoch at which this block began

}  // namespace

void Clock::refresh(std::uint32_t now) {
  if (epoch == now) return;
  epoch = now;
  chunks = 0;
}
void Clock::open(unsigned chunk) {
  if (!(chunks >> chunk & 1)) std::fill_n(&seen[chunk * 32], 32, 0);
  chunks |= std::uint64_t{1} << chunk;
}
void Clock::set(unsigned t, std::uint16_t v) {
  open(t / 32);
  seen[t] = v;
}
void Clock::join(const Clock& o) {
  for (std::uint64_t left = o.chunks; left; left &= left - 1) {
    const unsigned c = static_cast<unsigned>(std::countr_zero(left));
    open(c);
    for (unsigned i = c * 32; i < c * 32 + 32; ++i) seen[i] = std::max(seen[i], o.seen[i]);
  }
}

namespace {

std::array<Clock, max_units> known;
std::array<std::uint16_t, max_units> clocks;                 // each thread's own time, from 1 in each epoch
std::vector<std::array<std::uint16_t, max_threads>> fences;  // per block of the launch

struct Stamp {
  std::uint32_t epoch = 0;
  std::uint16_t thread = 0, clock = 0;
};

std::array<Stamp, max_threads> async_fences;  // each thread's last

Stamp now(unsigned unit) { return {epoch, static_cast<std::uint16_t>(unit), clocks[unit]}; }
Stamp now() { return now(current->index); }

// Is work of this block with that stamp known to the current thread?
bool before(const Stamp& s) {
  if (s.epoch < epoch || s.thread == current->index) return true;
  const Clock& k = known[current->index];
  return k.epoch == epoch && s.thread < max_units && k[s.thread] > s.clock;
}

// --- shared memory ------------------------------------------------------------------------------
struct Cell {  // of one byte
  Stamp write, reads[2];
};

template <class T> T* reserve(std::size_t n) {
  void* p = mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<T*>(p);
}

struct Range {
  std::uintptr_t from = 0, to = 0;
  bool has(std::uintptr_t a) const { return a >= from && a < to; }
};
Range statics, constants, builtins;  // of the object that holds the running kernel
Cell* static_cells;
Cell* dynamic_cells;

void conflict(const Stamp& other, bool other_wrote, Access a, std::size_t bytes, Where w) {
  if (other.thread == in_flight)
    fail(Fault::async_copy, w, "%s of %zu bytes of shared memory with an asynchronous copy in flight",
         a == Access::read ? "read" : "write", bytes);
  fail(Fault::race, w, "%s of %zu bytes of shared memory after a %s by thread %u, no barrier between",
       a == Access::read ? "read" : "write", bytes, other_wrote ? "write" : "read", other.thread);
}

void shared_access(Cell* cell, std::size_t bytes, Access a, Where w, const Stamp me) {
  for (Cell* c = cell; c < cell + bytes; ++c) {
    const bool fresh = c->write.epoch >= block_epoch;
    if (a != Access::write && !fresh)
      fail(Fault::uninitialised, w, "read of %zu bytes of shared memory, byte %zu unwritten so far", bytes,
           static_cast<std::size_t>(c - cell));
    if (a == Access::atomic) {  // orders nothing, conflicts with nothing
      c->write = me;
      continue;
    }
    if (fresh && (c->write.thread == in_flight || !before(c->write))) conflict(c->write, true, a, bytes, w);
    if (a == Access::read) {
      if (c->reads[0].thread != me.thread || c->reads[0].epoch < epoch) c->reads[1] = c->reads[0];
      c->reads[0] = me;
    } else {
      for (const Stamp& r : c->reads)
        if (r.epoch >= block_epoch && !before(r)) conflict(r, false, a, bytes, w);
      c->write = me;
    }
  }
}

// --- global memory ------------------------------------------------------------------------------
struct Touch {
  std::uint32_t op = 0;
  Stamp stamp;
  std::uint16_t fence = 0;
  std::uint8_t bytes = 0, atomic = 0;
};
struct Granule {  // of four bytes
  Touch write, read;
};
Granule* granules;
bool block_atomics;                                     // the running block has used a global atomic
std::vector<std::pair<std::uint32_t, unsigned>> began;  // epoch and index of each block so far

unsigned block_of(std::uint32_t e) {
  auto it = std::upper_bound(began.begin(), began.end(), std::pair{e, ~0U});
  return it == began.begin() ? 0 : (it - 1)->second;
}

unsigned known_pair[2];  // the last pair of operations found in order

bool op_before(unsigned earlier, unsigned later) {
  if (known_pair[0] == earlier && known_pair[1] == later) return true;
  const Op& e = ops[earlier];
  const Op& l = ops[later];
  const bool yes = e.stream < l.seen.size() && l.seen[e.stream] >= e.seen[e.stream];
  if (yes) known_pair[0] = earlier, known_pair[1] = later;
  return yes;
}

void check_pair(const Touch& old, Access a, std::uint8_t bytes, bool old_wrote, unsigned op, Where w) {
  if (!(old.bytes & bytes) || !old.op) return;
  const char* verb = a == Access::read ? "read" : "write";
  const char* did = old_wrote ? "written" : "read";
  if (old.op != op) {
    if (!op_before(old.op, op))
      fail(Fault::stream_order, w,
           "%s of memory %s by an operation of another stream, no event or synchronisation between", verb, did);
    return;
  }
  if (!current || (old.atomic && a == Access::atomic)) return;
  const Stamp& s = old.stamp;
  if (s.epoch >= block_epoch) {
    if (!old.atomic && a != Access::atomic && !before(s))
      fail(Fault::race, w, "%s of global memory %s by thread %u of this block, no barrier between", verb, did,
           s.thread);
  } else if (!old_wrote) {  // after an atomic of its own, the block may know that the reader is done
    if (!block_atomics)
      fail(Fault::block_race, w, "write of memory read by block %u in this launch", block_of(s.epoch));
  } else if (!old.atomic) {
    const unsigned b = block_of(s.epoch);
    if (fences[b][s.thread] == old.fence)
      fail(a == Access::read ? Fault::missing_fence : Fault::block_race, w,
           "%s of memory written by block %u in this launch, no __threadfence after it", verb, b);
  }
}

}  // namespace

bool in_arena(const void* p) {
  const char* c = static_cast<const char*>(p);
  return c >= arena.base && c < arena.base + arena.size;
}

void mark(const void* p, std::size_t n, std::uint8_t state) {
  std::memset(arena.state + (static_cast<const char*>(p) - arena.base), state, n);
}

void global_access(const void* p, std::size_t n, Access a, unsigned op, Where w) {
  if constexpr (!with_shadow) return;
  if (!granules) granules = reserve<Granule>(arena.size / 4);
  const std::size_t at = static_cast<std::size_t>(static_cast<const char*>(p) - arena.base);
  std::uint8_t* state = arena.state + at;
  for (std::size_t i = 0; i < n; ++i) {
    if (state[i] <= freed)
      fail(Fault::out_of_bounds, w, "%s of %zu bytes of global memory, byte %zu %s",
           a == Access::read ? "read" : "write", n, i,
           state[i] == freed ? "freed or not yet allocated" : "outside every allocation");
    if (a != Access::write && state[i] == unwritten && current)
      fail(Fault::uninitialised, w, "read of %zu bytes of global memory, byte %zu unwritten", n, i);
  }
  if (a != Access::read) std::memset(state, written, n);
  block_atomics |= a == Access::atomic;
  Touch me;
  me.op = op;
  if (current) {
    me.stamp = now();
    me.fence = fences[block_now][current->index];
    me.atomic = a == Access::atomic;
  } else {
    me.stamp.epoch = epoch;
  }
  for (std::size_t g = at / 4; g <= (at + n - 1) / 4; ++g) {
    Granule& x = granules[g];
    const std::size_t from = std::max(at, g * 4) - g * 4, to = std::min(at + n, g * 4 + 4) - g * 4;
    me.bytes = static_cast<std::uint8_t>((1U << to) - (1U << from));
    check_pair(x.write, a, me.bytes, true, op, w);
    if (a != Access::read) check_pair(x.read, a, me.bytes, false, op, w);
    Touch& mine = a == Access::read ? x.read : x.write;
    const bool again = mine.op == me.op && mine.stamp.epoch == me.stamp.epoch && mine.stamp.thread == me.stamp.thread &&
                       mine.stamp.clock == me.stamp.clock && mine.fence == me.fence && mine.atomic == me.atomic;
    const std::uint8_t before_bytes = again ? mine.bytes : 0;
    mine = me;
    mine.bytes |= before_bytes;
  }
}

void library_access(const void* p, std::size_t n, Access a, unsigned op, const char* library) {
  if (!with_shadow || !n) return;
  const char* verb = a == Access::read ? "read" : "write";
  const char* c = static_cast<const char*>(p);
  if (!in_arena(c) || !in_arena(c + n - 1))
    return fail(Fault::host_memory, {}, "%s: %s of %zu bytes at %p, which is no device memory", library, verb, n, p);
  const std::uint8_t* state = arena.state + (c - arena.base);
  for (std::size_t i = 0; i < n; ++i)
    if (state[i] <= freed || (state[i] == unwritten && a != Access::write))
      return fail(state[i] <= freed ? Fault::out_of_bounds : Fault::uninitialised, {},
                  "%s: %s of %zu bytes of device memory, byte %zu %s", library, verb, n, i,
                  state[i] == freed    ? "freed or not yet allocated"
                  : state[i] == absent ? "outside every allocation"
                                       : "unwritten");
  global_access(p, n, a, op, {});
}

void count_access();

void touch(const void* p, std::size_t n, Access a, const void* pc) {
  if constexpr (!with_shadow) return;
  if (!current || engine_busy) return;
  const auto x = reinterpret_cast<std::uintptr_t>(p);
  const auto stack = reinterpret_cast<std::uintptr_t>(current->stack);
  if (x - stack < stack_bytes) return;
  count_access();
  if (in_arena(p)) {
    const std::size_t unit = n == 2 || n == 4 || n == 8 || n == 16 ? n : 1;
    if (x % unit) fail(Fault::misaligned, pc, "access of %zu bytes at %p", n, p);
    return global_access(p, n, a, launch_now->op, pc);
  }
  const auto dynamic = reinterpret_cast<std::uintptr_t>(dynamic_arena);
  if (x - dynamic < max_dynamic_shared) {
    if (x - dynamic + n > launch_now->shared_bytes)
      fail(Fault::out_of_bounds, pc, "access at byte %zu of %zu bytes of dynamic shared memory",
           static_cast<std::size_t>(x - dynamic), launch_now->shared_bytes);
    return shared_access(dynamic_cells + (x - dynamic), n, a, pc, now());
  }
  if (builtins.has(x)) return;
  if (statics.has(x)) return shared_access(static_cells + (x - statics.from), n, a, pc, now());
  const auto args = reinterpret_cast<std::uintptr_t>(launch_now->call.self.get());
  if (a == Access::read && (constants.has(x) || x - args < launch_now->call.bytes)) return;
  fail(Fault::host_memory, pc, "%s of %zu bytes at %p, which no kernel thread may touch",
       a == Access::read ? "read" : "write", n, p);
}

// --- launches, blocks and barriers ------------------------------------------------------------------
extern "C" char __start_simt_builtin[], __stop_simt_builtin[];

void shadow_launch(const Launch& l) {
  if constexpr (!with_shadow) return;
  if (!dynamic_cells) dynamic_cells = reserve<Cell>(max_dynamic_shared);
  const auto kernel = reinterpret_cast<std::uintptr_t>(l.call.kernel);
  const auto before_statics = statics.from;
  auto find = [](dl_phdr_info* info, std::size_t, void* data) {
    const auto k = *static_cast<std::uintptr_t*>(data);
    Range all{~std::uintptr_t{0}, 0}, writable;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& h = info->dlpi_phdr[i];
      if (h.p_type != PT_LOAD) continue;
      const Range r{info->dlpi_addr + h.p_vaddr, info->dlpi_addr + h.p_vaddr + h.p_memsz};
      all = {std::min(all.from, r.from), std::max(all.to, r.to)};
      if (h.p_flags & PF_W) writable = r;
    }
    if (!all.has(k)) return 0;
    constants = all;
    statics = writable;
    return 1;
  };
  dl_iterate_phdr(find, const_cast<std::uintptr_t*>(&kernel));
  builtins = {reinterpret_cast<std::uintptr_t>(__start_simt_builtin),
              reinterpret_cast<std::uintptr_t>(__stop_simt_builtin)};
  if (statics.from != before_statics) static_cells = reserve<Cell>(statics.to - statics.from);
  fences.resize(l.grid.x * l.grid.y * l.grid.z);
  for (auto& f : fences) f.fill(0);
  began.clear();
}

void shadow_block() {
  block_epoch = ++epoch;
  block_atomics = false;
  if constexpr (!with_shadow) return;
  began.emplace_back(epoch, block_now);
  clocks.fill(1);
}

void order_block() {
  ++epoch;
  clocks.fill(1);
}

void order_threads(const unsigned* index, unsigned n) {
  if constexpr (!with_shadow) return;
  static Clock all;
  all.epoch = epoch;
  all.chunks = 0;
  for (unsigned i = 0; i < n; ++i) {
    Clock& k = known[index[i]];
    k.refresh(epoch);
    all.join(k);
  }
  for (unsigned i = 0; i < n; ++i) all.set(index[i], ++clocks[index[i]]);
  for (unsigned i = 0; i < n; ++i) known[index[i]].join(all);
}

void fence() {
  if constexpr (with_shadow) ++fences[block_now][current->index];
}

namespace {
Cell* cell_of(const void* p) {
  const char* c = static_cast<const char*>(p);
  return c >= dynamic_arena && c < dynamic_arena + max_dynamic_shared
             ? dynamic_cells + (c - dynamic_arena)
             : static_cells + (reinterpret_cast<std::uintptr_t>(p) - statics.from);
}
}  // namespace

void async_begin(char* to, unsigned bytes) {
  if constexpr (!with_shadow) return;
  std::for_each_n(cell_of(to), bytes, [](Cell& c) { c.write = {epoch, in_flight, 0}; });
}

void async_end(char* to, unsigned bytes, unsigned unit) {
  if constexpr (!with_shadow) return;
  std::for_each_n(cell_of(to), bytes, [=](Cell& c) { c.write = now(unit); });
}

void unit_read(const void* p, std::size_t n, unsigned unit, Where w) {
  if constexpr (!with_shadow) return;
  for (const Cell* c = cell_of(p); c < cell_of(p) + n; ++c) {
    const Stamp s = c->write;
    if (s.thread >= max_threads || s.epoch < block_epoch) continue;
    const Stamp f = async_fences[s.thread];
    if (s.epoch > f.epoch || (s.epoch == f.epoch && s.clock >= f.clock))
      fail(Fault::missing_fence, w, "wgmma reads shared memory that thread %u wrote, no async_fence after it",
           s.thread);
  }
  shared_access(cell_of(p), n, Access::read, w, now(unit));
}

void order_async_fence() {
  const unsigned t = current->index;
  if constexpr (with_shadow) async_fences[t] = {epoch, static_cast<std::uint16_t>(t), ++clocks[t]};
}

void order_release(Clock& c, unsigned unit) {
  if constexpr (!with_shadow) return;
  c.refresh(epoch);
  if (known[unit].epoch == epoch) c.join(known[unit]);
  c.set(unit, ++clocks[unit]);
}

void order_acquire(unsigned unit, const Clock& c) {
  if constexpr (!with_shadow) return;
  known[unit].refresh(epoch);
  if (c.epoch == epoch) known[unit].join(c);
}

void shadow_reset() {
  ops.resize(1);
  known_pair[0] = known_pair[1] = 0;
  if (granules) madvise(granules, arena.size / 4 * sizeof(Granule), MADV_DONTNEED);
}

}  // namespace simt::engine

// --- what the compiler calls ---------------------------------------------------------------------
#ifdef SIMT_CHECKED
namespace {
using simt::engine::Access;
}
#define SIMT_HOOK(name, bytes, access) \
  extern "C" void __tsan_##name(void* p) { simt::engine::touch(p, bytes, Access::access, __builtin_return_address(0)); }
#define SIMT_HOOKS(n)                    \
  SIMT_HOOK(read##n, n, read)            \
  SIMT_HOOK(write##n, n, write)          \
  SIMT_HOOK(volatile_read##n, n, read)   \
  SIMT_HOOK(volatile_write##n, n, write) \
  SIMT_HOOK(unaligned_read##n, n, read)  \
  SIMT_HOOK(unaligned_write##n, n, write)
SIMT_HOOKS(1)
SIMT_HOOKS(2)
SIMT_HOOKS(4)
SIMT_HOOKS(8)
SIMT_HOOKS(16)
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_read_range(void* p, std::size_t n) { simt::engine::touch(p, n, Access::read, __builtin_return_address(0)); }
void __tsan_write_range(void* p, std::size_t n) {
  simt::engine::touch(p, n, Access::write, __builtin_return_address(0));
}

// std::atomic and shared_ptr in the host code of a kernel source.
#define SIMT_ATOMIC(n, T)                                                                               \
  T __tsan_atomic##n##_load(const T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }           \
  void __tsan_atomic##n##_store(T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }           \
  T __tsan_atomic##n##_exchange(T* p, T v, int) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##n##_fetch_add(T* p, T v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##n##_fetch_sub(T* p, T v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); } \
  bool __tsan_atomic##n##_compare_exchange_strong(T* p, T* e, T v, int, int) {                          \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);             \
  }
SIMT_ATOMIC(8, std::uint8_t)
SIMT_ATOMIC(32, std::uint32_t)
SIMT_ATOMIC(64, std::uint64_t)

// From -fsanitize=alignment,bounds, in the layout of that interface's data.
struct UbsanPlace {
  const char* file;
  unsigned line, column;
};
void __ubsan_handle_type_mismatch_v1(UbsanPlace* at, void* p) {
  if (!simt::engine::current) return;
  simt::engine::fail(simt::Fault::misaligned, {}, "access at %p, line %u of %s", p, at->line, at->file);
}
void __ubsan_handle_out_of_bounds(UbsanPlace* at, void* index) {
  if (!simt::engine::current) return;
  simt::engine::fail(simt::Fault::out_of_bounds, {}, "index %zd of a static array, line %u of %s",
                     reinterpret_cast<std::ptrdiff_t>(index), at->line, at->file);
}
}
#endif
