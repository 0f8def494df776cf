#include "common/harness.h"

#include "common/stats.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <thread>

namespace tg::bench {
namespace {
bool cpu_time = false;
}  // namespace

double now() {
  if (cpu_time) {
    timespec t;
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double timed(const std::function<void()>& f) {
  const double start = now();
  f();
  return now() - start;
}
void use_cpu_time() { cpu_time = true; }

Timing summary(std::vector<double> t) {
  std::sort(t.begin(), t.end());
  return {percentile(t, 50), percentile(t, 10), percentile(t, 90), int(t.size())};
}

Timing measure(const std::function<void()>& f, MeasureOptions o) {
  for (const double start = now(); now() - start < o.warmup;) f();
  std::vector<double> t;
  for (const double start = now(); int(t.size()) < o.min_runs || now() - start < o.min_seconds;) t.push_back(timed(f));
  return summary(t);
}
Paired measure_pair(const std::function<void()>& a, const std::function<void()>& b, MeasureOptions o) {
  for (const double start = now(); now() - start < o.warmup;) a(), b();
  std::vector<double> ta, tb, ratio;
  for (const double start = now(); int(ta.size()) < o.min_runs || now() - start < o.min_seconds;) {
    ta.push_back(timed(a));
    tb.push_back(timed(b));
    ratio.push_back(ta.back() / tb.back());
  }
  return {summary(ta), summary(tb), summary(ratio).median};
}

void Recordings::check(const CompileStats& now) const {
  const uint64_t recorded = now.recorded_ops - before_, launches = now.graph_launches - launches_;
  TG_CHECK(4 * recorded <= launches, state,
           "[bench] {} launches of a graph of {} ops recorded {} ops again, and their recording was timed. Give the "
           "function the same tensors in each run.",
           launches, now.ops, recorded);
}

Machine machine(Device device) {
  std::string cpu = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
#ifdef __clang__
  const std::string compiler = "clang " __clang_version__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
  return {cpu,
          to_string(device),
          detail::runtime_of(device).describe(device.index),
          compiler,
          int(std::thread::hardware_concurrency()),
          num_threads()};
}
std::string utc_date() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::now())); }
}  // namespace tg::bench
