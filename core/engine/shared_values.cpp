#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/engine/trace.h>
#ifdef __linux__
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace tg::detail {
namespace {
// Never freed: destructors of other objects may still emit ops.
struct Readers {
  std::mutex writing;  // also guards the others
  std::vector<ValueReader*> all, unused;
  std::vector<Ref<Value>> old{4096};
  size_t next = 0;
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
std::atomic<bool> g_writing = false;
bool several_readers() { return g_readers.load(std::memory_order_relaxed) > 1; }

ValueReader& new_reader() {
  struct Registered {
    ValueReader* reader;
    Registered() {
      Readers& r = readers();
      const std::lock_guard lock(r.writing);
      if (r.unused.empty()) r.unused.push_back(new ValueReader);
      r.all.push_back(reader = r.unused.back());
      r.unused.pop_back(), ++g_readers;
    }
    ~Registered() {
      Readers& r = readers();
      const std::lock_guard lock(r.writing);
      std::erase(r.all, reader);
      r.unused.push_back(reader), --g_readers;
    }
  };
  thread_local const Registered mine;
  return *(t_reader = mine.reader);
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
  // The thread that traces may wait for this one.
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
       is_updating(v) && (v.updating || std::chrono::steady_clock::now() < end);) {
    std::this_thread::yield();
    wait_for_writer(reader_);
  }
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
  reader_.depth.store(depth_ + 1, std::memory_order_relaxed);  // it may read itself
}
WritesValues::~WritesValues() {
  reader_.depth.store(depth_, std::memory_order_relaxed);
  if (others_) g_writing.store(false, std::memory_order_release);
  readers().writing.unlock();
}
void WritesValues::replace(Variable& v, Ref<Value> next) {
  UpdatesElsewhere::note(v);
  std::swap(v.value, next);
  if (!others_ || !next || next.use_count() > 1) return;
  next->storage = nullptr, next->producer = nullptr, next->bf16_copy = nullptr;
  std::swap(readers().old[readers().next++ % readers().old.size()], next);
}

std::atomic<uint32_t> UpdatesElsewhere::active_ = 0;
namespace {
struct Updated {
  std::mutex mutex;
  std::vector<uint64_t> ids;  // of variables
};
Updated& updated() {
  static Updated* const all = new Updated;
  return *all;
}
}  // namespace
UpdatesElsewhere::UpdatesElsewhere() {
  const std::lock_guard lock(updated().mutex);
  if (!active_++) updated().ids.clear();
  first_ = updated().ids.size();
}
UpdatesElsewhere::~UpdatesElsewhere() { --active_; }
void UpdatesElsewhere::add(const Variable& v) {
  if (tracing()) return;
  const std::lock_guard lock(updated().mutex);
  updated().ids.push_back(v.id);
}
bool UpdatesElsewhere::have(const Variable& v) const {
  const std::lock_guard lock(updated().mutex);
  const auto& ids = updated().ids;
  return std::find(ids.begin() + int64_t(first_), ids.end(), v.id) != ids.end();
}

}  // namespace tg::detail
