// A log per thread, locked also by a profiler's end. A record reads the session under its log's lock: none follows
// stop()'s visit.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/profile/profiler_record.h>
#include <tapegrad/core/scope.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>

namespace tg {
namespace {
using namespace detail;
using Keep = ProfileOptions::Keep;
struct Log {  // a thread's log
  std::mutex mutex;
  uint64_t session = 0;
  uint32_t thread = 0;
  bool ended = false;  // the thread ended
  std::vector<Profile::Range> ranges;
  std::vector<uint32_t> open;
  std::vector<Profile::Kernel> kernels;
  std::vector<Profile::Call> calls;
  std::vector<Profile::Memory> memory;
  Profile::Totals range_totals, kernel_totals, call_totals;
  uint64_t dropped = 0;

  uint32_t innermost() const { return open.empty() ? Profile::kNone : open.back(); }
};

// Never destroyed: threads may end last.
struct State {
  std::mutex mutex;  // guards the members below; locked before a Log
  std::vector<std::unique_ptr<Log>> logs;
  uint64_t last_session = 0;
  // Written while no profiler runs.
  ProfileOptions options;
  int64_t begin = 0;
  std::vector<std::pair<Device, int64_t>> live;  // live bytes at the start
  std::vector<std::string> notes;
  std::unique_ptr<DeviceProfiler> device;
  std::atomic<uint32_t> threads{0};
};
State& state() {
  static State& s = *new State;
  return s;
}
constinit std::atomic<const RangeListener*> g_listener{nullptr};

constinit thread_local Log* t_log = nullptr;
constinit thread_local bool t_ended = false;
Log* new_log() {
  if (t_ended) return nullptr;
  struct AtEnd {
    ~AtEnd() {
      const std::lock_guard lock(t_log->mutex);
      t_log->ended = true;
      t_log = nullptr;
      t_ended = true;
    }
  };
  State& s = state();
  {
    const std::lock_guard lock(s.mutex);
    t_log = s.logs.emplace_back(std::make_unique<Log>()).get();
  }
  thread_local AtEnd at_end;
  (void)at_end;
  return t_log;
}
// Calls f(log) if this session is running; 0: any session.
template <class F> void record(uint64_t session, F f) {
  Log* const log = t_log ? t_log : new_log();
  if (!log) return;
  const std::lock_guard lock(log->mutex);
  const uint64_t now = g_profiling.load(std::memory_order_acquire);
  if (!now || (session && session != now)) return;
  if (log->session != now) {
    log->session = now;
    log->thread = state().threads.fetch_add(1, std::memory_order_relaxed);
  }
  f(*log);
}
template <class F> void record_if_possible(uint64_t session, F f) noexcept {
  try {
    record(session, f);
  } catch (...) {  // out of memory: no record
  }
}
template <class Records, class Record> void keep(Log& log, Records& records, Record r) {
  if (records.size() < state().options.most_records)
    records.push_back(std::move(r));
  else
    ++log.dropped;
}
uint64_t number_of(const Log& log, uint32_t range) { return (uint64_t(log.thread) << 32 | range) + 1; }
}  // namespace

namespace detail {
namespace {
// Sets `session` only if the log has room.
void open_range(Profile::Range r, uint64_t& session, uint32_t& index) {
  record(0, [&](Log& log) {
    const State& s = state();
    if (log.ranges.size() >= s.options.most_records) {
      ++log.dropped;
      return;
    }
    index = uint32_t(log.ranges.size());
    r.thread = log.thread;
    r.parent = log.innermost();
    if (s.device) s.device->enter(number_of(log, index));
    if (s.options.nvtx) g_listener.load(std::memory_order_relaxed)->begin(std::string(r.name).c_str());
    r.begin = profiler_clock();
    log.open.push_back(index);
    log.ranges.push_back(std::move(r));
    session = log.session;
  });
}
Profile::Range range_of(RangeKind kind, std::string_view name, const Scope* path, const Scope* layer) {
  return {kind, name, 0, Profile::kNone, 0, -1, path, layer};
}
}  // namespace

void Span::begin_range(const Scope* path) {
  open_range(range_of(RangeKind::range, path->name, path, nullptr), session_, index_);
}
void Span::begin_layer(const Scope* layer) {
  open_range(range_of(RangeKind::layer, *detail::intern(layer->path()), t_range, layer), session_, index_);
}
void OpSpan::begin(std::string_view op, const Scope* layer, const Scope* path, std::string shapes) {
  Profile::Range r = range_of(RangeKind::op, op, path ? path : t_range, layer);
  r.shapes = std::move(shapes);
  open_range(std::move(r), session_, index_);
}
void Span::end() noexcept {
  const int64_t now = profiler_clock();
  record_if_possible(session_, [&](Log& log) {
    const State& s = state();
    if (log.innermost() != index_) return;
    log.open.pop_back();
    Profile::Range& r = log.ranges[index_];
    r.end = now;
    if (s.options.nvtx) g_listener.load(std::memory_order_relaxed)->end();
    if (s.device) s.device->leave();
    if (s.options.keep == Keep::records) return;
    if (s.options.keep == Keep::totals) add_to(log.range_totals, r.name, r.end - r.begin);
    log.ranges.pop_back();
  });
}

void note_kernel(std::string_view name, int64_t begin) noexcept {
  const int64_t end = profiler_clock();
  record_if_possible(0, [&](Log& log) {
    if (state().options.keep == Keep::nothing || begin < state().begin) return;
    if (state().options.keep == Keep::totals) return add_to(log.kernel_totals, name, end - begin);
    keep(log, log.kernels,
         Profile::Kernel{name, Device(), log.thread, begin, end, log.innermost(), {}, nullptr, nullptr});
  });
}
void note_memory(Device d, int64_t bytes) noexcept {
  record_if_possible(0, [&](Log& log) {
    if (state().options.keep != Keep::records) return;
    keep(log, log.memory, Profile::Memory{d, log.thread, profiler_clock(), bytes, 0});
  });
}
void note_call(std::string_view name, int64_t begin) noexcept {
  const int64_t end = profiler_clock();
  record_if_possible(0, [&](Log& log) {
    if (state().options.keep == Keep::totals) return add_to(log.call_totals, name, end - begin);
    if (state().options.keep == Keep::nothing || begin < state().begin) return;
    keep(log, log.calls, Profile::Call{name, Backend::cpu, log.thread, begin, end, log.innermost()});
  });
}
int64_t profiler_clock() {
  const auto t = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(t).count();
}
ProfileOptions::Keep profiler_keeps() { return state().options.keep; }
void add_to(Profile::Totals& totals, std::string_view name, int64_t ns) {
  auto at = totals.find(name);
  if (at == totals.end()) at = totals.emplace(name, Profile::Total()).first;
  at->second.add({1, ns, ns, ns});
}
const RangeListener* set_range_listener(const RangeListener* l) { return g_listener.exchange(l); }
}  // namespace detail

namespace {
std::vector<Device> devices_in_use() {
  std::vector<Device> d;
  for (const Backend b : {Backend::cpu, Backend::cuda})
    for (int8_t i = 0; has_device({b, i}); ++i)
      if (detail::runtime_of({b, i}).in_use(i)) d.push_back({b, i});
  return d;
}
// Merges logs into a profile.
class Collector {
 public:
  Collector(State& s, uint64_t session) : s_(s), session_(session), end_(profiler_clock()) {}
  Profile collect(DeviceRecords device) {
    p_.duration = end_ - s_.begin;
    p_.notes = std::move(s_.notes);
    std::vector<Log*> logs;
    for (const auto& log : s_.logs)
      if (log->session == session_) logs.push_back(log.get());
    std::ranges::sort(logs, {}, &Log::thread);
    for (Log* log : logs) take_ranges(*log);
    for (Log* log : logs) take_rest(*log);
    take_device(std::move(device));
    std::ranges::stable_sort(p_.memory, {}, &Profile::Memory::time);
    std::ranges::stable_sort(p_.calls, {}, &Profile::Call::begin);
    std::ranges::stable_sort(p_.kernels, {}, &Profile::Kernel::begin);
    std::ranges::stable_sort(p_.copies, {}, &Profile::Copy::begin);
    for (Profile::Memory& m : p_.memory) m.live = live_of(m.device) += m.bytes;
    return std::move(p_);
  }

 private:
  int64_t& live_of(Device d) {
    const auto at = std::ranges::find(s_.live, d, &std::pair<Device, int64_t>::first);
    return at != s_.live.end() ? at->second : s_.live.emplace_back(d, 0).second;  // device first used after the start
  }
  void take_ranges(Log& log) {
    first_.resize(std::max(first_.size(), size_t(log.thread) + 1), Profile::kNone);
    first_[log.thread] = uint32_t(p_.ranges.size());
    if (s_.options.keep != Keep::records) return;
    for (Profile::Range& r : log.ranges) {
      r.begin -= s_.begin;
      r.end = (r.end < 0 ? end_ : r.end) - s_.begin;
      r.parent = in_all(log, r.parent);
      p_.ranges.push_back(std::move(r));
    }
  }
  void take_rest(Log& log) {
    for (Profile::Kernel& k : log.kernels) {
      k.range = in_all(log, k.range);
      add_kernel(k, nullptr);
    }
    for (Profile::Call& c : log.calls) {
      c.range = in_all(log, c.range);
      add_call(c);
    }
    for (Profile::Memory& m : log.memory) {
      m.time -= s_.begin;
      p_.memory.push_back(m);
    }
    add_totals(p_.range_totals, log.range_totals);
    add_totals(p_.kernel_totals, log.kernel_totals);
    add_totals(p_.call_totals, log.call_totals);
    p_.dropped += log.dropped;
    log.ranges = {}, log.open = {}, log.kernels = {}, log.calls = {}, log.memory = {};
    log.range_totals = {}, log.kernel_totals = {}, log.call_totals = {};
    log.dropped = 0;
  }
  static void add_totals(Profile::Totals& to, const Profile::Totals& from) {
    for (const auto& [name, t] : from) to[name].add(t);
  }
  void take_device(DeviceRecords d) {
    add_totals(p_.kernel_totals, d.kernel_totals);
    add_totals(p_.call_totals, d.call_totals);
    for (DeviceKernel& k : d.kernels) {
      k.kernel.range = of_number(k.range);
      add_kernel(k.kernel, k.has_origin ? &k.kernel : nullptr);
    }
    for (DeviceCopy& c : d.copies) {
      c.copy.range = of_number(c.range);
      const Scope* const path = c.copy.range == Profile::kNone ? nullptr : p_.ranges[c.copy.range].path;
      c.copy.path = c.has_origin ? joined_path(path, c.copy.path) : path;
      c.copy.begin -= s_.begin;
      c.copy.end -= s_.begin;
      p_.copies.push_back(c.copy);
    }
    for (DeviceCall& c : d.calls) {
      c.call.range = of_number(c.range);
      if (c.call.range != Profile::kNone) c.call.thread = p_.ranges[c.call.range].thread;
      add_call(c.call);
    }
    for (std::string& n : d.notes) p_.notes.push_back(std::move(n));
    p_.dropped += d.dropped;
  }
  void add_kernel(Profile::Kernel k, const Profile::Kernel* origin) {
    k.begin -= s_.begin;
    k.end -= s_.begin;
    const Profile::Range* const r = k.range == Profile::kNone ? nullptr : &p_.ranges[k.range];
    if (origin) {
      k.path = joined_path(r ? r->path : nullptr, origin->path);
    } else if (r) {
      k.op = r->kind == RangeKind::op ? r->name : std::string_view();
      k.path = r->path;
      k.layer = r->layer;
    }
    p_.kernels.push_back(k);
  }
  void add_call(Profile::Call c) {
    c.begin -= s_.begin;
    c.end -= s_.begin;
    p_.calls.push_back(c);
  }
  uint32_t in_all(const Log& log, uint32_t i) const { return i == Profile::kNone ? i : first_[log.thread] + i; }
  uint32_t of_number(uint64_t n) const {
    if (!n || s_.options.keep != Keep::records) return Profile::kNone;
    return first_.at((n - 1) >> 32) + uint32_t(n - 1);
  }

  State& s_;
  uint64_t session_;
  int64_t end_;
  std::vector<uint32_t> first_;  // indexed by thread
  Profile p_;
};

void start_device(State& s) {
  if (!has_device(Device::cuda())) return;
  try {
    s.device = detail::runtime_of(Device::cuda()).profiler();
  } catch (const Error& e) {
    s.notes.push_back(fmt::format("kernels of the GPU are missing: {}", e.what()));
  }
}
// Ends all records. The caller holds the state's lock.
std::unique_ptr<DeviceProfiler> end_session(State& s) {
  g_profiling.store(0, std::memory_order_release);
  for (const auto& log : s.logs) const std::lock_guard passed(log->mutex);
  return std::move(s.device);
}
}  // namespace

Profiler::Profiler(const ProfileOptions& o) {
  State& s = state();
  std::vector<std::pair<Device, int64_t>> live;  // precedes the lock: allocators lock too
  for (const Device d : devices_in_use()) {
    synchronize(d);
    live.emplace_back(d, memory_stats(d).live);
  }
  const std::lock_guard lock(s.mutex);
  TG_CHECK(!g_profiling.load(), state,
           "[profiler] another profiler is running. A profiler records all threads of the process, so only one may "
           "run at a time: stop() that one first.");
  TG_CHECK(!o.nvtx || g_listener.load(std::memory_order_acquire), value,
           "[profiler] ProfileOptions::nvtx is set, but this build has no CUDA and thus no NVTX. Configure with "
           "TG_CUDA=ON, or do not set it.");
  TG_CHECK(o.most_records > 0 && o.most_records < Profile::kNone, value,
           "[profiler] most_records is {}. It must be between 1 and 2^32 - 2.", o.most_records);
  std::erase_if(s.logs, [](const auto& log) {
    const std::lock_guard its(log->mutex);
    return log->ended;
  });
  s.options = o;
  s.notes.clear();
  s.live = std::move(live);
  s.threads = 0;
  if (o.keep != Keep::nothing) start_device(s);
  s.begin = profiler_clock();
  session_ = ++s.last_session;
  g_profiling.store(session_, std::memory_order_release);
}
Profile Profiler::stop() {
  State& s = state();
  TG_CHECK(session_, state, "[profiler] stop() was called before. Make a new Profiler.");
  // Includes queued work, and throws kernels' Errors, before the session ends.
  for (const Device d : devices_in_use()) synchronize(d);
  const std::lock_guard lock(s.mutex);
  session_ = 0;
  const std::unique_ptr<DeviceProfiler> device = end_session(s);
  return Collector(s, s.last_session).collect(device ? device->finish() : DeviceRecords());
}
std::unique_ptr<detail::DeviceProfiler> BackendRuntime::profiler() { return nullptr; }
Profiler::~Profiler() {
  if (!session_) return;
  try {
    (void)stop();
  } catch (...) {  // lost device or no memory
    const std::lock_guard lock(state().mutex);
    (void)end_session(state());
  }
}

}  // namespace tg
