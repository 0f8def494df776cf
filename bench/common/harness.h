// Measuring for the programs of this folder: medians of many runs with the spread, and what machine it was. Not for
// tests: no time passes or fails.
#pragma once
#include <tapegrad/core/device.h>
#include <tapegrad/core/plan/compile.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tg::bench {

double now();                                  // seconds
double timed(const std::function<void()>& f);  // seconds that f() takes
void use_cpu_time();  // from here on now() counts the processor time of this process: for one thread on a busy machine

enum class RunMode { eager, compiled };  // compiled: functions of tensors go through tg::compile
std::string_view name_of(RunMode);

struct Timing {
  double median, p10, p90;  // seconds per run
  int runs;
};
Timing summary(std::vector<double> seconds);  // of at least one run

// Runs f until it has taken `warmup` seconds, then at least `min_runs` times and `min_seconds`. f ends synchronised.
struct MeasureOptions {
  double warmup = 0.2, min_seconds = 1;
  int min_runs = 50;
};
Timing measure(const std::function<void()>& f, MeasureOptions = {});
// a and b in turn, run by run, so that a noisy machine disturbs both: medians of each, and the median of the ratios a /
// b.
struct Paired {
  Timing a, b;
  double ratio;
};
Paired measure_pair(const std::function<void()>& a, const std::function<void()>& b, MeasureOptions = {});

// Recording the ops of a compiled function's graph again would be a part of its time. From the end of the first runs
// on: an Error(state) if more than every fourth launch recorded an op.
class Recordings {
 public:
  explicit Recordings(const CompileStats& now) : before_(now.recorded_ops), launches_(now.graph_launches) {}
  void check(const CompileStats& now) const;

 private:
  uint64_t before_, launches_;
};

struct Machine {
  std::string cpu, device, backend, compiler;  // "AMD EPYC ...", "cpu", "x86-64-v4, 2 thread(s)", "g++ 12.2.0"
  int cpus, threads;
};
Machine machine(Device = {});
std::string utc_date();  // now: "2026-01-31T12:00:00Z"

}  // namespace tg::bench
