#include <tapegrad/emulator/queue.h>

#include <algorithm>
#include <unordered_set>

#include <tapegrad/emulator/memory.h>

namespace simt::engine {
namespace {

constexpr std::size_t max_streams = 1024;   // maximum that a mark holds
constexpr std::size_t queue_length = 1024;  // blocks launches when full

// Leaked: static objects may free last.
auto& undone = *new std::vector<OperationPtr>;  // order of submission
auto& streams = *new std::vector<std::unique_ptr<Stream>>;
auto& retired = *new std::vector<std::unique_ptr<Stream>>;
auto& seen_by_host = *new Counts;
bool in_host_function;

bool is_ready(const Operation& o) {
  return std::ranges::all_of(o.after, [](const OperationPtr& d) { return d->done; });
}

void perform(const OperationPtr& o) {
  if (!failed() && o->work.run) {
    const std::uint64_t begin = recording_activity ? activity_clock() : 0;
    if (o->work.kind == Kind::host) {
      in_host_function = true;
      o->work.run(*o);
      in_host_function = false;
    } else {
      const Open open;
      o->work.run(*o);
    }
    if (recording_activity) operation_ran(*o, begin);
  }
  o->work = {};
  o->after.clear();
  o->done = true;
  std::erase(undone, o);
}

// Whether all operations of the stream precede all others.
bool is_known(const Stream& s) {
  const std::uint64_t mark = mark_of(s.index, s.count);
  return comes_before(mark, seen_by_host) &&
         std::ranges::all_of(undone, [&](const OperationPtr& o) { return comes_before(mark, o->seen); });
}

unsigned free_index() {
  for (auto& s : retired) {
    if (s->count && !is_known(*s)) continue;
    const unsigned index = s->index;
    streams[index] = std::make_unique<Stream>();
    streams[index]->count = s->count;
    s = std::move(retired.back());
    retired.pop_back();
    return index;
  }
  if (streams.size() == max_streams) {
    if (retired.empty()) return max_streams;
    finish_all();
    return free_index();
  }
  streams.push_back(std::make_unique<Stream>());
  return static_cast<unsigned>(streams.size() - 1);
}

}  // namespace

void join(Counts& into, const Counts& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

Stream& null_stream() {
  if (streams.empty()) streams.push_back(std::make_unique<Stream>());
  return *streams[0];
}
const std::vector<std::unique_ptr<Stream>>& all_streams() { return streams; }

Stream* new_stream(bool blocking) {
  (void)null_stream();
  const unsigned index = free_index();
  if (index == max_streams) return nullptr;
  Stream& s = *streams[index];
  s.index = index;
  s.blocking = blocking;
  return &s;
}
void retire(Stream* s) {
  s->capture = nullptr;
  s->waits.clear();
  retired.push_back(std::move(streams[s->index]));
}

const Counts& host_seen() { return seen_by_host; }
std::uint64_t pending_operations() { return undone.size(); }

namespace {
bool refuse_in_host_function() {
  if (in_host_function) fail(Fault::usage, {}, "a function of cudaLaunchHostFunc calls the CUDA API");
  return in_host_function;
}
}  // namespace

namespace {
// Runs what `o` needs; a shuffled schedule runs others too.
void run_until(const OperationPtr& o) {
  while (!o->done) {
    std::unordered_set<const Operation*> needed{o.get()};
    std::vector<OperationPtr> can;
    for (std::size_t i = undone.size(); i-- > 0;) {
      const OperationPtr& u = undone[i];
      const bool need = needed.contains(u.get());
      if (need)
        for (const OperationPtr& d : u->after) needed.insert(d.get());
      if ((need || policy.kind == Policy::shuffled) && is_ready(*u)) can.push_back(u);
    }
    perform(policy.kind == Policy::shuffled ? can[random() % can.size()] : can.front());
  }
}
}  // namespace
void finish(const OperationPtr& o) {
  if (!o || refuse_in_host_function()) return;
  run_until(o);
  join(seen_by_host, o->seen);
}

void finish_all() {
  if (refuse_in_host_function()) return;
  while (!undone.empty()) finish(OperationPtr(policy.kind == Policy::backward ? undone.back() : undone.front()));
  for (const auto* list : {&streams, &retired})
    for (const auto& s : *list)
      if (s && s->last) join(seen_by_host, s->last->seen);
}

bool poll(const OperationPtr& o) {
  if (!o) return true;
  if (!o->done) return false;
  join(seen_by_host, o->seen);
  return true;
}

namespace {
std::vector<OperationPtr> befores(const Stream& s) {
  std::vector<OperationPtr> r = s.waits;
  if (s.last) r.push_back(s.last);
  if (s.blocking)  // legacy: null and blocking streams wait for each other
    for (const auto* list : {&streams, &retired})
      for (const auto& o : *list)
        if (o && o.get() != &s && o->blocking && o->last && (s.index == 0 || o->index == 0)) r.push_back(o->last);
  return r;
}
}  // namespace

Counts next_seen(const Stream& s) {
  Counts seen = seen_by_host;
  for (const OperationPtr& d : befores(s)) join(seen, d->seen);
  return seen;
}

OperationPtr enqueue(Stream& s, Work work, std::vector<OperationPtr> after) {
  if (refuse_in_host_function()) return nullptr;
  while (undone.size() >= queue_length) perform(OperationPtr(undone.front()));
  auto o = std::make_shared<Operation>();
  o->stream = s.index;
  o->number = ++s.count;
  o->seen = next_seen(s);
  for (const OperationPtr& d : after) join(o->seen, d->seen);
  if (o->seen.size() <= s.index) o->seen.resize(s.index + 1);
  o->seen[s.index] = s.count;
  o->after = befores(s);
  o->after.insert(o->after.end(), after.begin(), after.end());
  s.waits.clear();
  std::erase_if(o->after, [](const OperationPtr& d) { return d->done; });
  if (work.queued) work.queued();
  const bool meets = work.meets;
  o->work = std::move(work);
  o->call = call_now();
  undone.push_back(o);
  s.last = o;
  if (policy.kind == Policy::forward) perform(o);
  if (policy.kind == Policy::shuffled && random() % 4 == 0) {
    const OperationPtr u = undone[random() % undone.size()];
    if (is_ready(*u)) perform(u);
  }
  if (meets) run_until(o);
  return o;
}

void queue_reset() {
  undone.clear();
  streams.clear();
  retired.clear();
  seen_by_host.clear();
}

}  // namespace simt::engine
