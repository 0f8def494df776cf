// Fibers, the scheduler of a block, barriers, warp collectives and asynchronous copies.
#include <tapegrad/cuda/simt/emulator.h>

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <numeric>

#include <tapegrad/cuda/simt/internal.h>
#include <tapegrad/cuda/simt/symbolize.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Kernels read these; their section tells them from shared variables.
#define SIMT_BUILTIN __attribute__((section("simt_builtin")))
SIMT_BUILTIN uint3 threadIdx, blockIdx;
SIMT_BUILTIN dim3 blockDim, gridDim;

// --- fibers --------------------------------------------------------------------------------------
#ifndef __x86_64__
#error "write simt_switch for this processor"
#endif
extern "C" void simt_switch(void** save, void* load);
asm(R"(
.text
.globl simt_switch
.type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size simt_switch, .-simt_switch
)");

namespace simt {
namespace engine {

const Launch* launch_now;
thread_local Thread* current;
unsigned block_now;
bool engine_busy;
std::array<Thread, max_threads> threads;
unsigned thread_count;
Policy policy{Policy::forward};

namespace {

alignas(1024) char dynamic_storage[max_dynamic_shared];
std::vector<Report>& all_reports = *new std::vector<Report>;
Statistics counters;
std::uint64_t random_state = 1, chosen_schedule = 0;

void* scheduler_sp;
[[maybe_unused]] void* scheduler_fake_stack;
[[maybe_unused]] const void* scheduler_stack;
[[maybe_unused]] std::size_t scheduler_stack_bytes;
bool failed;
struct {
  Fault fault;
  Where where;
  char text[600];
} failure;

std::array<unsigned, max_threads / 32> exited;  // lanes, per warp
unsigned live;

void to_scheduler([[maybe_unused]] bool for_good = false) {
  Thread* self = current;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(for_good ? nullptr : &self->fake_stack, scheduler_stack, scheduler_stack_bytes);
#endif
  simt_switch(&self->sp, scheduler_sp);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(self->fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

void resume(Thread& t) {
  current = &t;
  threadIdx = t.id;
  ++counters.switches;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, t.stack, stack_bytes);
#endif
  simt_switch(&scheduler_sp, t.sp);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
  current = nullptr;
}

void finish_thread();

void fiber_main() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  launch_now->call.run(launch_now->call.self.get());
  finish_thread();
  to_scheduler(true);
  __builtin_unreachable();
}

void prepare(Thread& t, unsigned index) {
  if (!t.stack) {
    const std::size_t guard = 4096;
    void* p =
        mmap(nullptr, stack_bytes + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(p, guard, PROT_NONE);
    t.stack = static_cast<char*>(p) + guard;
  }
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(t.stack, stack_bytes);
#endif
  // Stacks begin at different cache sets.
  void** top = reinterpret_cast<void**>(t.stack + stack_bytes - index % 32 * 128);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  t.sp = top;
  t.fake_stack = nullptr;
  t.index = index;
  const dim3 d = blockDim;
  t.id = {index % d.x, index / d.x % d.y, index / (d.x * d.y)};
  t.state = Thread::ready;
  t.waits = "";
  t.frame = nullptr;
  t.copies.clear();
  t.group = 0;
  t.products.clear();
  t.saved.clear();
}

std::string coordinates(const uint3& v) {
  return '(' + std::to_string(v.x) + ',' + std::to_string(v.y) + ',' + std::to_string(v.z) + ')';
}

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

void add_report(Fault fault, const Where& where, const char* text, const Thread* t) {
  std::string s = std::string(name(fault)) + ": " + text;
  if (where.known)
    s += std::string(" at ") + base_name(where.site.file_name()) + ':' + std::to_string(where.site.line());
  else if (where.pc)
    s += " at " + source_line(where.pc);
  if (launch_now) {
    s += "; kernel " + function_name(launch_now->call.kernel) + ", block " + coordinates(blockIdx);
    if (t) s += ", thread " + coordinates(t->id);
  }
  std::fprintf(stderr, "[simt] %s\n", s.c_str());
  all_reports.push_back({fault, std::move(s)});
}

}  // namespace

char* const dynamic_arena = dynamic_storage;

std::uint64_t random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

void fail(Fault fault, Where where, const char* format, ...) {
  std::va_list list;
  va_start(list, format);
  std::vsnprintf(failure.text, sizeof failure.text, format, list);
  va_end(list);
  if (!current) {
    add_report(fault, where, failure.text, nullptr);
    failed = true;
    return;
  }
  failure.fault = fault;
  failure.where = where;
  failed = true;
  engine_busy = false;
  to_scheduler(true);  // the scheduler reports on its own stack and abandons the grid
}

void wait(const char* what, Site site) {
  Thread& t = *current;
  t.state = Thread::waiting;
  t.waits = what;
  t.site = site;
  to_scheduler();
}

void release(Thread& t) { t.state = Thread::ready; }

// --- barriers ------------------------------------------------------------------------------------
namespace {

struct Named {
  std::vector<unsigned> arrived;
  Site first;
  unsigned expected = 0;
};
std::array<Named, 16> barriers;

struct Meeting {  // of lanes of a warp, for one operation
  unsigned mask, arrived;
  Combine combine;
  Site site;
};
std::array<std::vector<Meeting>, max_threads / 32> meetings;  // per warp

bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

// Completes the barrier if the current thread was the last; it goes on without waiting.
void arrive(Named& b, bool blocks, const char* what, Site at) {
  b.arrived.push_back(current->index);
  if (b.arrived.size() < b.expected) {
    if (blocks) wait(what, at);
    return;
  }
  if (b.expected == thread_count)
    order_block();
  else
    order_threads(b.arrived.data(), b.expected);
  for (const unsigned i : b.arrived)
    if (threads[i].state == Thread::waiting) release(threads[i]);
  b.arrived.clear();
}

unsigned lanes_of(unsigned warp) {
  const unsigned n = thread_count - warp * 32;
  return n >= 32 ? ~0U : (1U << n) - 1;
}

// The last lane of a meeting has come: runs the operation and lets the others go on.
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

// A thread has returned: nobody may wait for it.
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

bool run_block() {
  blockDim = launch_now->block;
  gridDim = launch_now->grid;
  const dim3 g = launch_now->grid;
  blockIdx = {block_now % g.x, block_now / g.x % g.y, block_now / (g.x * g.y)};
  thread_count = live = blockDim.x * blockDim.y * blockDim.z;
  exited.fill(0);
  for (Named& b : barriers) b.arrived.clear();
  for (auto& m : meetings) m.clear();
  std::memset(dynamic_storage, 0xff, launch_now->shared_bytes);
  shadow_block();
  hopper_block();
  static std::vector<unsigned> order;
  order.resize(thread_count);
  for (unsigned i = 0; i < thread_count; ++i) {
    prepare(threads[i], i);
    order[i] = policy.kind == Policy::backward ? thread_count - 1 - i : i;
  }
  while (live) {
    bool progress = false;
    if (policy.kind == Policy::shuffled)
      for (unsigned i = thread_count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    for (const unsigned i : order) {
      if (threads[i].state != Thread::ready) continue;
      progress = true;
      resume(threads[i]);
      if (failed) {
        add_report(failure.fault, failure.where, failure.text, &threads[i]);
        return false;
      }
    }
    if (hopper_progress(!progress) || progress) continue;
    std::string s = "no thread can run:";
    unsigned shown = 0;
    const Thread* last = nullptr;
    for (unsigned i = 0; i < thread_count && shown < 4; ++i) {
      const Thread& t = threads[i];
      if (t.state != Thread::waiting || (last && same(last->site, t.site))) continue;
      last = &t;
      ++shown;
      s += " thread " + coordinates(t.id) + " waits in " + t.waits + " at " + base_name(t.site.file_name()) + ':' +
           std::to_string(t.site.line()) + ';';
    }
    s += ' ' + std::to_string(thread_count - live) + " of " + std::to_string(thread_count) + " returned";
    add_report(Fault::deadlock, {}, s.c_str(), last);
    return false;
  }
  return !hopper_in_flight();
}

}  // namespace

bool run(const Launch& l) {
  launch_now = &l;
  failed = false;
  ++counters.launches;
  shadow_launch(l);
  const unsigned blocks = l.grid.x * l.grid.y * l.grid.z;
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0U);
  if (policy.kind == Policy::backward) std::reverse(order.begin(), order.end());
  if (policy.kind == Policy::shuffled)
    for (unsigned i = blocks; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  for (const unsigned b : order) {
    block_now = b;
    if (!run_block()) break;
  }
  launch_now = nullptr;
  return !failed && all_reports.empty();
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
  arrive(b, blocks, "a named barrier", at);
}

// --- warps ----------------------------------------------------------------------------------------
unsigned lane() { return current->index % 32; }

void collective(unsigned mask, void* frame, Combine combine, Site at) {
  Thread& t = *current;
  const unsigned warp = t.index / 32, own = 1U << t.index % 32;
  if (!(mask & own)) fail(Fault::lane_mask, at, "lane %u calls with mask %08x that leaves it out", lane(), mask);
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
  fail(Fault::lane_mask, current->site, "lane %u reads lane %u, which takes no part", reader, source);
  __builtin_unreachable();
}

void* dynamic_shared() { return dynamic_storage; }

// --- cp.async ------------------------------------------------------------------------------------
// The bytes arrive at the wait that covers them; until then the destination holds a NaN pattern.
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

void cp_async_wait(unsigned in_flight) {
  Thread& t = *current;
  std::erase_if(t.copies, [&](const Copy& c) {
    if (c.group + in_flight >= t.group) return false;
    if (c.from)
      std::memcpy(c.to, c.from, c.bytes);
    else
      std::memset(c.to, 0, c.bytes);
    async_end(c.to, c.bytes, t.index);
    return true;
  });
}

}  // namespace engine

// --- control -------------------------------------------------------------------------------------
const char* name(Fault f) {
  static const char* const names[] = {"race",          "uninitialised", "out of bounds", "misaligned", "host memory",
                                      "divergence",    "deadlock",      "lane mask",     "async copy", "stream order",
                                      "missing fence", "block race",    "usage"};
  return names[static_cast<int>(f)];
}

const std::vector<Report>& reports() { return engine::all_reports; }

std::string describe() {
  std::string s;
  for (const Report& r : reports()) s += r.text + '\n';
  return s;
}

bool checked() { return engine::with_shadow; }

Statistics statistics() { return engine::counters; }

namespace engine {
void count_access() { ++counters.accesses; }
void reset_runtime();
}  // namespace engine

std::uint64_t schedule() { return engine::chosen_schedule; }

void set_schedule(std::uint64_t seed) {
  const engine::Entry entry;
  (void)cudaDeviceSynchronize();
  engine::chosen_schedule = seed;
  engine::random_state = seed * 0x9e3779b97f4a7c15U + 1;
  engine::policy.kind = seed == 0   ? engine::Policy::forward
                        : seed == 1 ? engine::Policy::backward
                                    : engine::Policy::shuffled;
}

void reset(std::uint64_t seed) {
  const engine::Entry entry;
  engine::reset_runtime();
  engine::shadow_reset();
  engine::all_reports.clear();
  engine::failed = false;
  set_schedule(seed);
}

}  // namespace simt
