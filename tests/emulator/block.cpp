#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include <tapegrad/emulator/internal.h>
#include <tapegrad/emulator/order.h>
#include <tapegrad/emulator/queue.h>
#include <tapegrad/emulator/symbolize.h>

namespace simt::engine {

const Launch* launch_now;
thread_local Thread* current;
unsigned block_now;
bool engine_busy;
std::array<Thread, max_threads> threads;
unsigned thread_count;

namespace {
alignas(1024) char dynamic_storage[max_dynamic_shared];
std::array<unsigned, max_threads / 32> exited;  // lanes per warp
unsigned live;
}  // namespace

char* const dynamic_arena = dynamic_storage;

void wait(const char* what, Site site) {
  Thread& t = *current;
  t.state = Thread::waiting;
  t.waits = what;
  t.site = site;
  to_scheduler();
}

void release(Thread& t) { t.state = Thread::ready; }

// --- barriers
namespace {

struct Named {
  std::vector<unsigned> arrived, blocked;  // blocked ones have arrived
  Site first;
  unsigned expected = 0;
  Clock known;  // joined clocks
};
std::array<Named, 16> barriers;  // 0 is __syncthreads

struct Meeting {  // lanes in one operation
  unsigned mask, arrived;
  Combine combine;
  Site site;
};
std::array<std::vector<Meeting>, max_threads / 32> meetings;  // meetings per warp

// Each arrival releases. Blocked threads acquire at the last one, which does not wait.
void arrive(Named& b, bool blocks, const char* what, Site at) {
  const bool whole = &b == &barriers[0];
  const unsigned self = current->index;
  b.arrived.push_back(self);
  if (!whole) order_release(b.known, self);
  if (b.arrived.size() < b.expected) {
    if (!blocks) return;
    b.blocked.push_back(self);
    return wait(what, at);
  }
  if (whole) order_block();
  if (blocks && !whole) order_acquire(self, b.known);
  for (const unsigned i : b.blocked) {
    if (!whole) order_acquire(i, b.known);
    release(threads[i]);
  }
  b.arrived.clear();
  b.blocked.clear();
  b.known.chunks = 0;
}

unsigned lanes_of(unsigned warp) {
  const unsigned n = thread_count - warp * 32;
  return n >= 32 ? ~0U : (1U << n) - 1;
}

void conclude(unsigned warp, const Meeting& m, bool orders) {
  void* frames[32] = {};
  unsigned index[32], n = 0;
  for (unsigned left = m.arrived; left; left &= left - 1) {
    index[n] = warp * 32 + static_cast<unsigned>(std::countr_zero(left));
    frames[index[n] % 32] = threads[index[n]].frame;
    ++n;
  }
  engine_busy = true;
  m.combine(frames, m.arrived);
  engine_busy = false;
  if (orders) order_threads(index, n);
  for (unsigned i = 0; i < n; ++i) release(threads[index[i]]);
}

}  // namespace

void finish_thread() {
  Thread& t = *current;
  const unsigned w = t.index / 32;
  if (!barriers[0].arrived.empty())
    fail(Fault::divergence, barriers[0].first, "a thread returned while %zu of %u wait at __syncthreads",
         barriers[0].arrived.size(), thread_count);
  for (const Meeting& m : meetings[w])
    if (m.mask >> t.index % 32 & 1)
      fail(Fault::lane_mask, m.site, "mask %08x names lane %u, which returned", m.mask, t.index % 32);
  if (!t.copies.empty() || !t.products.empty())
    fail(Fault::async_copy, {}, "a thread returned with %s in flight", t.copies.empty() ? "wgmma" : "cp.async");
  exited[w] |= 1U << t.index % 32;
  t.state = Thread::done;
  --live;
}

namespace {

std::string why_stuck(const Thread** last) {
  std::string s = "no thread can run:";
  unsigned shown = 0;
  for (unsigned i = 0; i < thread_count && shown < 4; ++i) {
    const Thread& t = threads[i];
    if (t.state != Thread::waiting || (*last && same((*last)->site, t.site))) continue;
    *last = &t;
    ++shown;
    s += " thread " + coordinates(t.id) + " waits in " + t.waits + " at " + base_name(t.site.file_name()) + ':' +
         std::to_string(t.site.line()) + ';';
  }
  return s + ' ' + std::to_string(thread_count - live) + " of " + std::to_string(thread_count) + " returned";
}

void begin_block() {
  blockDim = launch_now->block;
  gridDim = launch_now->grid;
  const dim3 g = launch_now->grid;
  blockIdx = {block_now % g.x, block_now / g.x % g.y, block_now / (g.x * g.y)};
  thread_count = live = blockDim.x * blockDim.y * blockDim.z;
  exited.fill(0);
  for (Named& b : barriers) {
    b.arrived.clear();
    b.blocked.clear();
    b.known.chunks = 0;
  }
  for (auto& m : meetings) m.clear();
  std::memset(dynamic_storage, 0xff, launch_now->shared_bytes);
  shadow_block();
  hopper_block();
  for (unsigned i = 0; i < thread_count; ++i) prepare(threads[i], i);
}

template <class T> void shuffle(std::vector<T>& v) {
  for (std::size_t i = v.size(); i > 1; --i) std::swap(v[i - 1], v[random() % i]);
}

void run_block() {
  begin_block();
  static std::vector<unsigned> order;
  order.resize(thread_count);
  std::iota(order.begin(), order.end(), 0U);
  if (policy.kind == Policy::backward) std::ranges::reverse(order);
  while (live) {
    bool progress = false;
    if (policy.kind == Policy::shuffled) shuffle(order);
    for (const unsigned i : order) {
      if (threads[i].state != Thread::ready) continue;
      progress = true;
      resume(threads[i]);
      if (threads[i].state == Thread::stopped) return report_kernel(threads[i]);
    }
    if (hopper_progress(!progress) || progress) continue;
    const Thread* last = nullptr;
    const std::string s = why_stuck(&last);
    return report_deadlock(s.c_str(), last);
  }
  hopper_end();
}

}  // namespace

void run(const Launch& l) {
  launch_now = &l;
  ++counters.launches;
  shadow_launch(l);
  std::vector<unsigned> order(l.grid.x * l.grid.y * l.grid.z);
  std::iota(order.begin(), order.end(), 0U);
  if (policy.kind == Policy::backward) std::ranges::reverse(order);
  if (policy.kind == Policy::shuffled) shuffle(order);
  for (const unsigned b : order) {
    block_now = b;
    run_block();
    if (failed()) break;
  }
  launch_now = nullptr;
  if (const std::size_t fixed = static_shared(); !failed() && !may_share(l.call.kernel, l.shared_bytes, fixed))
    fail(Fault::usage, {}, "%s has %zu bytes of dynamic and %zu of static shared memory: too many, or without opt-in",
         function_name(l.call.kernel).c_str(), l.shared_bytes, fixed);
}

void sync_threads(Site at) {
  Named& b = barriers[0];
  if (b.arrived.empty()) {
    b.first = at;
    b.expected = thread_count;
  } else if (!same(b.first, at)) {
    fail(Fault::divergence, at, "__syncthreads while %zu threads wait at another one, line %u", b.arrived.size(),
         b.first.line());
  }
  if (live < thread_count)
    fail(Fault::divergence, at, "__syncthreads after %u threads of the block returned", thread_count - live);
  arrive(b, true, "__syncthreads", at);
}

void named_barrier(int id, int count, bool blocks, Site at) {
  if (id < 1 || id > 15 || count % 32 || count < 32 || unsigned(count) > thread_count)
    fail(Fault::usage, at, "named barrier %d for %d threads", id, count);
  Named& b = barriers[unsigned(id)];
  if (b.arrived.empty()) b.expected = unsigned(count);
  if (b.expected != unsigned(count))
    fail(Fault::divergence, at, "named barrier %d joined with %d threads and with %u", id, count, b.expected);
  if (std::ranges::count(b.arrived, current->index))
    fail(Fault::divergence, at, "a thread arrives twice in one phase of named barrier %d", id);
  arrive(b, blocks, "a named barrier", at);
}

// --- warps
unsigned lane() { return current->index % 32; }

void collective(unsigned mask, void* frame, Combine combine, Site at) {
  Thread& t = *current;
  const unsigned warp = t.index / 32, own = 1U << t.index % 32;
  if (!(mask & own)) fail(Fault::lane_mask, at, "lane %u calls with mask %08x, which does not name it", lane(), mask);
  if (const unsigned gone = mask & exited[warp])
    fail(Fault::lane_mask, at, "mask %08x names lane %d, which returned", mask, std::countr_zero(gone));
  auto& pending = meetings[warp];
  std::size_t i = 0;
  while (i < pending.size() && !(pending[i].mask & own && pending[i].arrived & mask)) ++i;
  if (i == pending.size()) pending.push_back({mask, 0, combine, at});
  Meeting& m = pending[i];
  if (m.mask != mask || m.combine != combine || (frame && !same(m.site, at)))
    fail(Fault::lane_mask, at, "lane %u with mask %08x meets lanes %08x with mask %08x in %s at line %u", lane(), mask,
         m.arrived, m.mask, m.combine == combine ? "the same operation" : "another operation", m.site.line());
  m.arrived |= own;
  t.frame = frame;
  t.site = at;
  if (m.arrived != (mask & lanes_of(warp))) return wait("a warp collective", at);
  const Meeting complete = m;
  pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
  conclude(warp, complete, !frame);
}

void sync_warp(unsigned mask, Site at) {
  collective(
      mask, nullptr, [](void* const*, unsigned) {}, at);
}

void absent_lane(unsigned reader, unsigned source) {
  fail(Fault::lane_mask, current->site, "lane %u reads lane %u, which does not participate", reader, source);
  __builtin_unreachable();
}

void* dynamic_shared() { return dynamic_storage; }

// --- stores of vectors
void store(void* to, const void* from, unsigned bytes, bool shared) {
  const void* pc = __builtin_return_address(0);
  if (reinterpret_cast<std::uintptr_t>(to) % bytes) fail(Fault::misaligned, pc, "store of %u bytes at %p", bytes, to);
  if (!(shared ? is_shared(to) : is_global(to)))
    fail(Fault::usage, pc, "store to %s memory at %p, which is other memory", shared ? "shared" : "global", to);
  touch(to, bytes, Access::write, pc);
  std::memcpy(to, from, bytes);
}

// --- cp.async
// NaNs until the wait.
void cp_async(void* shared, const void* global, unsigned bytes, bool valid) {
  const void* pc = __builtin_return_address(0);
  char* to = static_cast<char*>(shared);
  if (reinterpret_cast<std::uintptr_t>(to) % bytes || (valid && reinterpret_cast<std::uintptr_t>(global) % bytes))
    fail(Fault::misaligned, pc, "cp.async of %u bytes from %p to %p", bytes, global, shared);
  touch(to, bytes, Access::write, pc);
  if (valid) touch(global, bytes, Access::read, pc);
  std::memset(to, 0xff, bytes);
  async_begin(to, bytes);
  current->copies.push_back({to, valid ? static_cast<const char*>(global) : nullptr, bytes, current->group});
}

void cp_async_commit() { ++current->group; }

void cp_async_wait(unsigned left) {
  Thread& t = *current;
  std::erase_if(t.copies, [&](const Copy& c) {
    if (c.group + left >= t.group) return false;
    if (c.from)
      std::memcpy(c.to, c.from, c.bytes);
    else
      std::memset(c.to, 0, c.bytes);
    async_end(c.to, c.bytes, t.index);
    return true;
  });
}

}  // namespace simt::engine
