// The owner of busy_ publishes a job, opens the gate, works, closes the gate and waits for the workers inside, not for
// sleeping ones.
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/error.h>
#include <tapegrad/cpu/runtime/cpus.h>
#include <tapegrad/cpu/runtime/thread_pool.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace tg::cpu {
namespace {
constexpr auto kSpin = std::chrono::microseconds(50);  // longer than serial code between kernels
constexpr auto kPoll = std::chrono::microseconds(20);  // interval of polling workers
constexpr int kPolls = 10;
constexpr int64_t kPart = 16;  // a thread takes 1/kPart of the remainder
constexpr uint32_t kOpen = 1u << 31;
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;

constinit thread_local bool t_in_tile = false;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class F> bool spin_until(F done, std::chrono::microseconds time = kSpin) {
  const auto end = std::chrono::steady_clock::now() + time;
  do {
    for (int i = 0; i < 16; ++i, pause())
      if (done()) return true;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

class Pool {
 public:
  Pool()
      : cpus_(detail::usable_cpus()),
        threads_(detail::threads_from(std::getenv("TG_THREADS"), max_threads(), detail::cpu_quota())) {
    (void)tg::detail::kernel_level(Backend::cpu);  // an Error when TG_ISA is no level
  }
  int threads() const { return threads_.load(relaxed); }
  int max_threads() const { return int(cpus_.size()); }
  void resize(int n);
  void run(int64_t tiles, void (*call)(void*, int64_t), void* f);

 private:
  void start_workers();
  void move_worker_off_caller_cpu();
  void work(size_t me, uint32_t seen);
  void take_tiles(size_t me);
  void close_gate();
  std::vector<size_t> preempted_workers();

  const std::vector<int> cpus_;  // ascending
  std::atomic<int> threads_;
  std::mutex busy_;  // guards non-atomic members
  std::vector<std::thread> workers_;
  std::vector<int> places_;
  std::vector<int64_t> ran_;  // run_time() at the last poll
  int home_ = 0;              // a cpu without a worker
  std::chrono::steady_clock::time_point moved_;
  std::atomic<bool> stop_{false};

  // A thread's first tiles [next, end), the same for every job: its caches hold their data. Then it helps the others.
  struct alignas(64) TileRange {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
    std::atomic<bool> inside{false};  // the worker has passed the gate
  };

  std::vector<TileRange> shares_;  // first the caller, then the workers
  void (*call_)(void*, int64_t) = nullptr;
  void* f_ = nullptr;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};

  alignas(64) std::atomic<uint32_t> epoch_{0};  // workers wait on it
  alignas(64) std::atomic<uint32_t> gate_{0};   // kOpen + number of workers inside
};

void Pool::start_workers() {
  const size_t want = size_t(threads() - 1);
  if (workers_.size() == want) return;
  const std::vector<int> cpus = detail::placement(cpus_, detail::current_cpu(), detail::core_of);
  home_ = cpus[0];
  shares_ = std::vector<TileRange>(want + 1);
  try {
    while (workers_.size() < want) {
      workers_.emplace_back([this, me = workers_.size() + 1, seen = epoch_.load(relaxed)] { work(me, seen); });
      places_.push_back(cpus[workers_.size()]);
      ran_.push_back(-1);
      detail::pin(workers_.back(), places_.back());
    }
  } catch (const std::system_error& e) {
    TG_CHECK(false, state,
             "[threads] worker {} of {} does not start: {}. The system limits the number of threads. Set TG_THREADS to "
             "a smaller number or raise the limit.",
             workers_.size() + 1, want, e.what());
  }
}

// A caller that woke up on a worker's cpu stays there, both at half speed, even with an idle cpu. The worker moves,
// because the user owns the caller's affinity; at most once a millisecond, or two callers would move it back and forth.
void Pool::move_worker_off_caller_cpu() {
  const int here = detail::current_cpu();
  if (here == home_ || !std::binary_search(cpus_.begin(), cpus_.end(), here)) return;
  const auto there = std::find(places_.begin(), places_.end(), here);
  if (there != places_.end()) {
    const auto now = std::chrono::steady_clock::now();
    if (now - moved_ < std::chrono::milliseconds(1)) return;
    moved_ = now;
    *there = home_;
    detail::pin(workers_[size_t(there - places_.begin())], home_);
  }
  home_ = here;
}

void Pool::work(size_t me, uint32_t seen) {
  const tg::detail::DefaultFloatMode mode;
  for (;;) {
    if (!spin_until([&] { return epoch_.load(acquire) != seen; })) epoch_.wait(seen, acquire);
    seen = epoch_.load(acquire);
    if (stop_.load(relaxed)) return;
    uint32_t gate = gate_.load(relaxed);
    while ((gate & kOpen) && !gate_.compare_exchange_weak(gate, gate + 1, acquire, relaxed)) {
    }
    if (!(gate & kOpen)) continue;
    shares_[me].inside.store(true, relaxed);
    take_tiles(me);
    shares_[me].inside.store(false, relaxed);
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_one();
  }
}

void Pool::take_tiles(size_t me) {
  t_in_tile = true;
  try {
    for (size_t k = 0; k < shares_.size(); ++k) {
      TileRange& s = shares_[(me + k) % shares_.size()];
      for (int64_t left; !failed_.load(relaxed) && (left = s.end - s.next.load(relaxed)) > 0;) {
        const int64_t chunk = (left + kPart - 1) / kPart;  // small at the end, where others may wait
        int64_t tile = s.next.fetch_add(chunk, relaxed);
        for (const int64_t end = std::min(tile + chunk, s.end); tile < end && !failed_.load(relaxed); ++tile)
          call_(f_, tile);
      }
    }
  } catch (...) {
    if (!failed_.exchange(true, relaxed)) error_ = std::current_exception();
  }
  t_in_tile = false;
}

// Workers inside that have not run since the last poll.
std::vector<size_t> Pool::preempted_workers() {
  std::vector<size_t> those;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!shares_[i + 1].inside.load(relaxed)) continue;
    const int64_t time = detail::run_time(workers_[i]);
    if (std::exchange(ran_[i], time) == time && time >= 0) those.push_back(i);
  }
  return those;
}

// A preempted worker would stall all for the scheduler's slice of milliseconds. It finishes on the idle caller's cpu,
// then moves back.
void Pool::close_gate() {
  uint32_t inside = gate_.fetch_sub(kOpen, std::memory_order_acq_rel) - kOpen;
  if (inside == 0) return;
  std::vector<size_t> borrowed;
  for (int look = 0; look < kPolls && borrowed.empty(); ++look) {
    if (spin_until([&] { return gate_.load(acquire) == 0; }, kPoll)) return;
    borrowed = preempted_workers();
  }
  for (size_t i : borrowed) detail::pin(workers_[i], detail::current_cpu());
  while ((inside = gate_.load(acquire)) != 0) gate_.wait(inside, acquire);
  for (size_t i : borrowed) detail::pin(workers_[i], places_[i]);
}

void Pool::run(int64_t tiles, void (*call)(void*, int64_t), void* f) {
  std::unique_lock lock(busy_, std::defer_lock);
  if (t_in_tile || threads() == 1 || !lock.try_lock()) {
    for (int64_t tile = 0; tile < tiles; ++tile) call(f, tile);
    return;
  }
  start_workers();
  move_worker_off_caller_cpu();
  const int64_t helpers = int64_t(workers_.size());
  const int64_t each = tiles / (helpers + 1), longer = tiles % (helpers + 1);
  for (int64_t i = 0, begin = 0; i <= helpers; ++i) {
    shares_[size_t(i)].next.store(begin, relaxed);
    shares_[size_t(i)].end = begin += each + (i < longer ? 1 : 0);
  }
  call_ = call;
  f_ = f;
  failed_.store(false, relaxed);
  gate_.store(kOpen, std::memory_order_release);
  epoch_.fetch_add(1);
  if (tiles > helpers) {
    epoch_.notify_all();
  } else {
    for (int64_t i = 1; i < tiles; ++i) epoch_.notify_one();
  }
  take_tiles(0);
  close_gate();
  if (failed_.load(relaxed)) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Pool::resize(int n) {
  TG_CHECK(
      n >= 1 && n <= max_threads(), value,
      "[set_num_threads] {} threads. The number must be in 1..{}, the cpus this process may use. Pass such a number.",
      n, max_threads());
  TG_CHECK(!t_in_tile, state,
           "[set_num_threads] called inside a parallel_for. The pool cannot change while it works. Call it before.");
  std::lock_guard lock(busy_);
  if (n == threads()) return;
  stop_.store(true, relaxed);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (auto& w : workers_) w.join();
  workers_.clear();
  places_.clear();
  ran_.clear();
  stop_.store(false, relaxed);
  threads_.store(n, relaxed);
}

// Leaked: static destructors may run kernels, and workers outlive main().
Pool& pool() {
  static Pool& p = *new Pool;
  return p;
}
}  // namespace

namespace detail {
int threads_from(const char* env, int cpus, double quota) {
  if (!env) return int(std::clamp(std::ceil(quota), 1.0, double(cpus)));
  int n = 0;
  const char* end = env + std::strlen(env);
  const auto r = std::from_chars(env, end, n);
  TG_CHECK(
      r.ec == std::errc() && r.ptr == end && n >= 1 && n <= cpus, value,
      "[threads] TG_THREADS is '{}'. It must be a number in 1..{}, the cpus this process may use. Change or unset it.",
      env, cpus);
  return n;
}
void run_tiles(int64_t tiles, void (*call)(void*, int64_t), void* f) {
  if (tiles > 1)
    pool().run(tiles, call, f);
  else if (tiles == 1)
    call(f, 0);
}
void run_chunks(int64_t n, int64_t grain, void (*call)(void*, int64_t, int64_t), void* f) {
  TG_CHECK(grain >= 1, value, "[parallel_for] grain is {}. It must be at least 1. Pass a positive grain.", grain);
  if (n <= 0) return;
  parallel_for((n - 1) / grain + 1, [&](int64_t tile) {
    const int64_t begin = tile * grain;
    call(f, begin, n - begin < grain ? n : begin + grain);
  });
}
}  // namespace detail

int num_threads() { return pool().threads(); }
int max_threads() { return pool().max_threads(); }
void set_num_threads(int n) { pool().resize(n); }
}  // namespace tg::cpu
