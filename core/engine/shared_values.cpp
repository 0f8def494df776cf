#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/engine/trace.h>
#ifdef __linux__
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace tg::detail {
namespace {
// Never freed: destructors may emit ops.
struct Readers {
  std::mutex writing;  // guards all members
  std::vector<ValueReader*> all, unused;
  uint32_t next_id = 0;
};
Readers& readers() {
  static Readers* const all = new Readers;
  return *all;
}
std::atomic<size_t> g_readers = 0;
// Returns when the stores of all threads are visible.
void wait_for_stores() {
#ifdef __linux__
  static const bool registered = !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
  if (registered && !syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)) return;
#endif
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}
}  // namespace

constinit thread_local ValueReader* t_reader = nullptr;
constinit thread_local bool t_ending = false;
std::atomic<bool> g_writing = false;
bool several_readers() { return g_readers.load(std::memory_order_relaxed) > 1; }

ValueReader& new_reader() {
  const auto add = [] {
    Readers& r = readers();
    const std::lock_guard lock(r.writing);
    if (r.unused.empty()) r.unused.push_back(new ValueReader{.id = r.next_id += 256});
    r.all.push_back(t_reader = r.unused.back());
    r.unused.pop_back(), ++g_readers;
  };
  struct Registered {
    ~Registered() {
      Readers& r = readers();
      const std::lock_guard lock(r.writing);
      std::erase(r.all, t_reader);
      r.unused.push_back(t_reader), --g_readers;
      t_reader = nullptr, t_ending = true;
    }
  };
  if (!t_ending) {
    thread_local Registered until_the_thread_ends;
    (void)until_the_thread_ends;
  }
  add();
  return *t_reader;
}
void wait_for_writer(ValueReader& r) {
  const uint32_t depth = r.depth.load(std::memory_order_relaxed);
  do {
    r.depth.store(0, std::memory_order_release);
    readers().writing.lock(), readers().writing.unlock();
    r.depth.store(depth, std::memory_order_seq_cst);
  } while (g_writing.load(std::memory_order_seq_cst));
}
void ReadsValues::wait(const Variable& v) {
  if (tracing()) return;
  // The tracing thread may wait for this one.
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
       is_updating(v) && (v.updating || is_running(*v.value) || std::chrono::steady_clock::now() < end);) {
    const Ref<Value> now = v.value;
    wait_until_run(*now);
    std::this_thread::yield();
    wait_for_writer(reader_);
  }
}
void wait_until_run(const Value& v) {
  ValueReader& thread = t_reader ? *t_reader : new_reader();
  while (thread.is_other(v.runner.load(std::memory_order_acquire))) {
    TG_CHECK(!thread.runs, state,
             "[evaluate] another thread computes a tensor {} that an op reads, which evaluate() runs in this thread: "
             "each might wait for the other. Evaluate the tensor first.",
             v.layout);
    std::this_thread::yield();
    wait_for_writer(thread);
  }
}
void leave(Node& n) {
  const uint32_t user = n.user.load(std::memory_order_relaxed);
  n.user.store((user & 255) == 1 ? 0 : user - 1, std::memory_order_release);
}
void abandon(Node& n) {
  if (n.done) return;
  for (Out& o : n.out)
    if (o.live) o.live->runner.store(0, std::memory_order_release);
  leave(n);
}

WritesValues::WritesValues()
    : reader_(t_reader ? *t_reader : new_reader()), depth_(reader_.depth.exchange(0, std::memory_order_release)) {
  readers().writing.lock();
  others_ = readers().all.size() > 1;
  if (others_) {
    g_writing.store(true, std::memory_order_seq_cst);
    wait_for_stores();
    for (const ValueReader* r : readers().all)
      while (r->depth.load(std::memory_order_acquire)) std::this_thread::yield();
  }
  reader_.depth.store(depth_ + 1, std::memory_order_relaxed);  // this thread may read inside its write
}
WritesValues::~WritesValues() {
  reader_.depth.store(depth_, std::memory_order_relaxed);
  if (others_) g_writing.store(false, std::memory_order_release);
  readers().writing.unlock();
}
void WritesValues::check_unused(const Node& n) const {
  if (reader_.is_other(n.user.load(std::memory_order_acquire)))
    throw with_scope(
        Error(Error::Kind::state, fmt::format("[{}] is in a graph that another thread computes or goes backward "
                                              "through. Let it end first, or run a forward pass in each thread.",
                                              n.op->name())),
        n.scope);
}
void WritesValues::claim(Node& n) const {
  const uint32_t user = n.user.load(std::memory_order_relaxed);
  n.user.store((user ? user : reader_.id) + 1, std::memory_order_relaxed);
}
Value* WritesValues::owned(Out& o) const {
  if (o.live && !o.live->refs.load(std::memory_order_acquire)) o.live = nullptr;
  return o.live;
}
void WritesValues::replace(Variable& v, Ref<Value> next) {
  UpdatesElsewhere::note(v);
  if (others_ && v.value) v.value->was_read = true;
  v.value = std::move(next);  // one store: no reader sees null
}
void retire(Value* v) {
  v->storage = nullptr, v->producer = nullptr, v->bf16_copy = nullptr;
  static std::array<std::atomic<Value*>, 4096> former;
  static std::atomic<size_t> count = 0;
  delete former[count.fetch_add(1, std::memory_order_relaxed) % former.size()].exchange(v, std::memory_order_acq_rel);
}

std::atomic<uint32_t> UpdatesElsewhere::active_ = 0;
namespace {
constinit std::mutex g_updates;
auto& updated = *new std::vector<uint64_t>;  // ids; never freed
}  // namespace
UpdatesElsewhere::UpdatesElsewhere() {
  const std::lock_guard lock(g_updates);
  if (!active_++) updated.clear();
  first_ = updated.size();
}
UpdatesElsewhere::~UpdatesElsewhere() { --active_; }
void UpdatesElsewhere::add(const Variable& v) {
  if (tracing()) return;
  const std::lock_guard lock(g_updates);
  updated.push_back(v.id);
}
bool UpdatesElsewhere::have(const Variable& v) const {
  const std::lock_guard lock(g_updates);
  return std::find(updated.begin() + int64_t(first_), updated.end(), v.id) != updated.end();
}

}  // namespace tg::detail
