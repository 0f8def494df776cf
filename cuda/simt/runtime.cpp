// Device memory, streams and events.  Work waits in a graph of operations; the schedule decides
// when each one runs, within the order that streams, events and synchronisations promise.
#include <tapegrad/cuda/simt/runtime.h>

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>

#include <tapegrad/cuda/simt/internal.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

namespace simt::engine {

struct Stream {
  unsigned index = 0, count = 0, last = 0;
  bool blocking = true, alive = true;
  std::vector<unsigned> waits;  // for its next operation
};
struct Event {
  unsigned op = 0;
  bool alive = true;
  std::chrono::steady_clock::time_point time;
};

namespace {

struct Task {
  std::function<void()> work;
  std::vector<unsigned> after;
  bool done = false;
};

constexpr std::size_t arena_bytes = std::size_t{8} << 30, capacity = std::size_t{4} << 30, gap = 64 * 1024;

std::deque<Task> tasks(1);      // by operation; 0 is none
std::vector<unsigned> undone;   // in order of submission
std::deque<Stream> streams(1);  // 0 is the null stream
std::deque<Event> events;
std::vector<unsigned> host_seen;  // what the host has synchronised with
std::map<const char*, std::size_t> allocations, pinned;
std::size_t in_use;
cudaError_t last_error = cudaSuccess;

cudaError_t status(cudaError_t e = cudaSuccess) {
  if (!reports().empty()) e = cudaErrorLaunchFailure;
  if (e != cudaSuccess) last_error = e;
  return e;
}

// The host may touch device memory only through the API: closed except while an operation runs.
struct Open {
  Open() { protect(PROT_READ | PROT_WRITE); }
  ~Open() { protect(PROT_NONE); }
  static void protect(int how) {
    if (arena.used) mprotect(arena.base, arena.used, how);
  }
};

void join(std::vector<unsigned>& into, const std::vector<unsigned>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

bool is_ready(unsigned op) {
  return std::ranges::all_of(tasks[op].after, [](unsigned d) { return tasks[d].done; });
}

void perform(unsigned op) {
  Task& t = tasks[op];
  if (reports().empty()) {
    const Open open;
    t.work();
  }
  t.work = nullptr;
  t.done = true;
  std::erase(undone, op);
}

// Runs operations until `op` is done: only what it needs, or, shuffled, others as well.
void finish(unsigned op) {
  while (!tasks[op].done) {
    std::vector<char> needed(tasks.size());
    needed[op] = 1;
    std::vector<unsigned> can;
    for (std::size_t i = undone.size(); i-- > 0;) {
      const unsigned u = undone[i];
      if (needed[u])
        for (const unsigned d : tasks[u].after) needed[d] = 1;
      if ((needed[u] || policy.kind == Policy::shuffled) && is_ready(u)) can.push_back(u);
    }
    perform(policy.kind == Policy::shuffled ? can[random() % can.size()] : can.front());
  }
  join(host_seen, ops[op].seen);
}

void finish_all() {
  while (!undone.empty()) finish(policy.kind == Policy::backward ? undone.back() : undone.front());
  for (const Stream& s : streams) join(host_seen, ops[s.last].seen);
}

unsigned enqueue(Stream* stream, std::function<void(unsigned)> work) {
  Stream& s = stream ? *stream : streams[0];
  const auto op = static_cast<unsigned>(tasks.size());
  Task t;
  t.after = std::move(s.waits);
  s.waits.clear();
  t.after.push_back(s.last);
  if (s.blocking)  // the null stream waits for the blocking streams, and they for it
    for (const Stream& o : streams)
      if (&o != &s && o.blocking && (s.index == 0 || o.index == 0)) t.after.push_back(o.last);
  Op o{s.index, host_seen};
  for (const unsigned d : t.after) join(o.seen, ops[d].seen);
  if (o.seen.size() <= s.index) o.seen.resize(s.index + 1);
  o.seen[s.index] = ++s.count;
  std::erase_if(t.after, [](unsigned d) { return tasks[d].done; });
  t.work = [work = std::move(work), op] { work(op); };
  ops.push_back(std::move(o));
  tasks.push_back(std::move(t));
  undone.push_back(op);
  s.last = op;
  if (policy.kind == Policy::forward) perform(op);
  if (policy.kind == Policy::shuffled && random() % 4 == 0) {
    const unsigned u = undone[random() % undone.size()];
    if (is_ready(u)) perform(u);
  }
  return op;
}

bool valid(cudaStream_t s) {
  if (!s || s->alive) return true;
  fail(Fault::usage, {}, "use of a destroyed stream");
  return false;
}

char* allocate(std::size_t n) {
  if (!arena.base) {
    auto map = [](std::size_t bytes, int how) {
      return mmap(nullptr, bytes, how, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    };
    arena.base = static_cast<char*>(map(arena_bytes, PROT_NONE));
    arena.state = static_cast<std::uint8_t*>(map(arena_bytes, PROT_READ | PROT_WRITE));
    arena.size = arena_bytes;
  }
  const std::size_t room = (n + 4095) / 4096 * 4096;  // addresses are never used again
  if (in_use + n > capacity || arena.used + room + 2 * gap > arena.size) return nullptr;
  if (arena.used == 0) arena.used = gap;
  char* p = arena.base + arena.used;
  arena.used += room + gap;
  in_use += n;
  allocations[p] = n;
  ASAN_POISON_MEMORY_REGION(p + n, room - n + gap);
  mark(p, n, freed);
  return p;
}

// In stream order: the memory exists, holding NaN patterns.
void open_memory(char* p, std::size_t n, unsigned op) {
  mark(p, n, unwritten);
  std::memset(p, 0xff, n);
  if (!n) return;
  global_access(p, n, Access::write, op, {});
  mark(p, n, unwritten);
}

void close_memory(char* p, unsigned op) {
  const auto it = allocations.find(p);
  const std::size_t n = it->second;
  if (n) global_access(p, n, Access::write, op, {});
  mark(p, n, freed);
  ASAN_POISON_MEMORY_REGION(p, n);
  madvise(p, (n + 4095) / 4096 * 4096, MADV_DONTNEED);
  in_use -= n;
  allocations.erase(it);
}

bool inside(const std::map<const char*, std::size_t>& m, const void* p, std::size_t n) {
  const char* c = static_cast<const char*>(p);
  auto it = m.upper_bound(c);
  return it != m.begin() && c + n <= (--it)->first + it->second;
}

cudaError_t copy(void* to, const void* from, std::size_t n, cudaMemcpyKind kind, Stream* s, bool sync) {
  if (!valid(s)) return status();
  const bool to_device = in_arena(to), from_device = in_arena(from);
  static constexpr bool wants[4][2] = {{false, false}, {true, false}, {false, true}, {true, true}};
  if (kind != cudaMemcpyDefault && (wants[kind][0] != to_device || wants[kind][1] != from_device)) {
    fail(Fault::usage, {}, "a copy of kind %d from %s to %s memory", kind, from_device ? "device" : "host",
         to_device ? "device" : "host");
    return status(cudaErrorInvalidValue);
  }
  if (!n) return status();
  // Pageable memory is staged: read now, or complete on return; pinned memory is used when the
  // copy runs.
  std::vector<char> staged;
  if (!from_device && !inside(pinned, from, n))
    staged.assign(static_cast<const char*>(from), static_cast<const char*>(from) + n);
  const bool late = !to_device && inside(pinned, to, n);
  if (late) std::memset(to, 0xff, n);
  const unsigned op = enqueue(s, [=, staged = std::move(staged)](unsigned id) {
    const void* source = staged.empty() ? from : staged.data();
    if (from_device) global_access(from, n, Access::read, id, {});
    if (to_device) global_access(to, n, Access::write, id, {});
    if (!reports().empty()) return;
    std::memcpy(to, source, n);
    if (from_device && to_device)
      std::memcpy(arena.state + (static_cast<char*>(to) - arena.base),
                  arena.state + (static_cast<const char*>(from) - arena.base), n);
  });
  if (sync || (!to_device && !late)) finish(op);
  return status();
}

}  // namespace

cudaError_t launch(Call call, dim3 grid, dim3 block, std::size_t shared_bytes, Stream* s) {
  if (!valid(s)) return status();
  const std::size_t n = std::size_t{block.x} * block.y * block.z;
  if (!n || n > max_threads || block.z > 64 || !grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff || grid.y > 65535 ||
      grid.z > 65535 || shared_bytes > max_dynamic_shared)
    return status(cudaErrorInvalidConfiguration);
  enqueue(s, [=](unsigned op) { run({call, grid, block, shared_bytes, op}); });
  return status();
}

void submit(cudaStream_t s, std::function<void(unsigned)> work) {
  if (valid(s)) enqueue(s, std::move(work));
}

void reset_runtime() {
  tasks.resize(1);
  tasks[0].done = true;
  undone.clear();
  streams.resize(1);
  streams[0] = {};
  events.clear();
  host_seen.clear();
  for (const auto& [p, n] : pinned) std::free(const_cast<char*>(p));
  pinned.clear();
  allocations.clear();
  in_use = 0;
  last_error = cudaSuccess;
  if (!arena.used) return;
  ASAN_UNPOISON_MEMORY_REGION(arena.base, arena.used);
  madvise(arena.base, arena.used, MADV_DONTNEED);
  madvise(arena.state, arena.used, MADV_DONTNEED);
  mprotect(arena.base, arena.used, PROT_NONE);
  arena.used = 0;
}

}  // namespace simt::engine

using namespace simt::engine;

const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchFailure:
      return simt::reports().empty() ? "unspecified launch failure" : simt::reports()[0].text.c_str();
  }
  return "unknown error";
}
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
  const cudaError_t e = last_error;
  if (simt::reports().empty()) last_error = cudaSuccess;
  return e;
}

cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, status(); }
cudaError_t cudaSetDevice(int d) { return status(d == 0 ? cudaSuccess : cudaErrorInvalidValue); }
cudaError_t cudaGetDevice(int* d) { return *d = 0, status(); }
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int) {
  *v = a == cudaDevAttrMultiProcessorCount      ? 4
       : a == cudaDevAttrComputeCapabilityMajor ? 9
       : a == cudaDevAttrComputeCapabilityMinor ? 0
                                                : static_cast<int>(max_dynamic_shared);
  return status();
}
cudaError_t cudaDeviceSynchronize() { return finish_all(), status(); }

cudaError_t cudaMallocAsync(void** p, std::size_t n, cudaStream_t s) {
  if (!valid(s)) return status();
  char* m = allocate(n);
  if (!m) return status(cudaErrorMemoryAllocation);
  enqueue(s, [=](unsigned op) { open_memory(m, n, op); });
  *p = m;
  return status();
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
  if (!p || !valid(s)) return status();
  if (!allocations.contains(static_cast<char*>(p))) {
    simt::engine::fail(simt::Fault::usage, {}, "free of %p, not an allocation", p);
    return status(cudaErrorInvalidValue);
  }
  enqueue(s, [=](unsigned op) { close_memory(static_cast<char*>(p), op); });
  return status();
}
cudaError_t cudaMalloc(void** p, std::size_t n) {
  const cudaError_t e = cudaMallocAsync(p, n, nullptr);
  if (e == cudaSuccess) finish(streams[0].last);
  return e;
}
cudaError_t cudaFree(void* p) {
  finish_all();
  const cudaError_t e = cudaFreeAsync(p, nullptr);
  finish_all();
  return e;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = capacity;
  *free = capacity - in_use;
  return status();
}
cudaError_t cudaMallocHost(void** p, std::size_t n) {
  *p = std::malloc(n ? n : 1);
  pinned[static_cast<char*>(*p)] = n;
  return status();
}
cudaError_t cudaFreeHost(void* p) {
  finish_all();
  if (pinned.erase(static_cast<char*>(p))) std::free(p);
  return status();
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t n, cudaMemcpyKind k) {
  return copy(to, from, n, k, nullptr, true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind k, cudaStream_t s) {
  return copy(to, from, n, k, s, false);
}
cudaError_t cudaMemsetAsync(void* p, int value, std::size_t n, cudaStream_t s) {
  if (!valid(s)) return status();
  if (!in_arena(p)) return status(cudaErrorInvalidValue);
  if (!n) return status();
  enqueue(s, [=](unsigned op) {
    global_access(p, n, simt::engine::Access::write, op, {});
    if (simt::reports().empty()) std::memset(p, value, n);
  });
  return status();
}
cudaError_t cudaMemset(void* p, int value, std::size_t n) { return cudaMemsetAsync(p, value, n, nullptr); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  streams.emplace_back();
  streams.back().index = static_cast<unsigned>(streams.size() - 1);
  streams.back().blocking = flags != cudaStreamNonBlocking;
  *s = &streams.back();
  return status();
}
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  if (s && valid(s)) s->alive = false;
  return status();
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (!valid(s)) return status();
  const Stream& stream = s ? *s : streams[0];
  finish(stream.last);
  for (const unsigned op : stream.waits) finish(op);
  if (!s)
    for (const Stream& o : streams)
      if (o.blocking) finish(o.last);
  return status();
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  const unsigned last = s ? s->last : streams[0].last;
  if (!tasks[last].done) return cudaErrorNotReady;
  join(host_seen, ops[last].seen);
  return status();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  if (valid(s) && e->op) (s ? *s : streams[0]).waits.push_back(e->op);
  return status();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, void (*f)(void*), void* data) {
  if (valid(s)) enqueue(s, [=](unsigned) { f(data); });
  return status();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  events.emplace_back();
  *e = &events.back();
  return status();
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return e->alive = false, status(); }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  if (valid(s)) e->op = enqueue(s, [e](unsigned) { e->time = std::chrono::steady_clock::now(); });
  return status();
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return finish(e->op), status(); }
cudaError_t cudaEventQuery(cudaEvent_t e) {
  if (!tasks[e->op].done) return cudaErrorNotReady;
  join(host_seen, ops[e->op].seen);
  return status();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  if (!tasks[from->op].done || !tasks[to->op].done) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return status();
}
