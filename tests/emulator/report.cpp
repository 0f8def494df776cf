#include <cstdarg>
#include <cstdio>
#include <cstring>

#include <tapegrad/emulator/internal.h>
#include <tapegrad/emulator/memory.h>
#include <tapegrad/emulator/queue.h>
#include <tapegrad/emulator/symbolize.h>

namespace simt {
namespace engine {

Policy policy{Policy::forward};
Statistics counters;

namespace {

auto& all_reports = *new std::vector<Report>;  // leaked
std::uint64_t random_state = 1, chosen_schedule = 0;
struct {  // the thread that stopped
  Fault fault;
  Where where;
  char text[600];
} failure;

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

std::string coordinates(const uint3& v) {
  return '(' + std::to_string(v.x) + ',' + std::to_string(v.y) + ',' + std::to_string(v.z) + ')';
}
const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}
bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

std::uint64_t random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

bool failed() { return !all_reports.empty(); }

void fail(Fault fault, Where where, const char* format, ...) {
  std::va_list list;
  va_start(list, format);
  std::vsnprintf(failure.text, sizeof failure.text, format, list);
  va_end(list);
  if (!current) return add_report(fault, where, failure.text, nullptr);
  failure.fault = fault;
  failure.where = where;
  engine_busy = false;
  current->state = Thread::stopped;
  to_scheduler();
}
void report_kernel(Thread& t) { add_report(failure.fault, failure.where, failure.text, &t); }
void report_deadlock(const char* text, const Thread* t) { add_report(Fault::deadlock, {}, text, t); }

}  // namespace engine

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
Statistics statistics() {
  Statistics s = engine::counters;
  s.pending = engine::pending_operations();
  s.addresses = engine::arena.used;
  return s;
}

std::uint64_t schedule() { return engine::chosen_schedule; }

void set_schedule(std::uint64_t seed) {
  const engine::Entry entry;
  engine::chosen_schedule = seed;
  (void)cudaDeviceSynchronize();
  engine::random_state = seed * 0x9e3779b97f4a7c15U + 1;
  engine::policy.kind = seed == 0   ? engine::Policy::forward
                        : seed == 1 ? engine::Policy::backward
                                    : engine::Policy::shuffled;
}

void reset(std::uint64_t seed) {
  const engine::Entry entry;
  engine::reset_handles();
  engine::graph_reset();
  engine::queue_reset();
  engine::memory_reset();
  engine::device_reset();
  engine::all_reports.clear();
  set_schedule(seed);
}

}  // namespace simt
