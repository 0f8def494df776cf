// Measurement: medians and spread of many runs, and the machine. Not for tests.
#pragma once
#include <tapegrad/core/device.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/config/suggest.h>

#include <functional>
#include <string>
#include <vector>

namespace tg {
namespace bench {
enum class RunMode { eager, compiled };  // compiled: tensor functions run through tg::compile
}
template <> inline constexpr EnumNames<2> kEnumNames<bench::RunMode>{"mode", {"eager", "compiled"}};
}  // namespace tg
namespace tg::bench {

double now();  // seconds
double timed(const std::function<void()>& f);
// Makes now() count this process's CPU time, for one thread on a busy machine.
void use_cpu_time();

struct Timing {
  double median, p10, p90;  // seconds per run
  int runs;
};
Timing summary(std::vector<double> seconds);  // not empty

// Runs f for `warmup` seconds, then at least `min_runs` times and `min_seconds`. f must synchronise.
struct MeasureOptions {
  double warmup = 0.2, min_seconds = 1;
  int min_runs = 50;
};
Timing measure(const std::function<void()>& f, MeasureOptions = {});
// Alternates a and b, so that noise hits both: the medians, and the median of the ratios a / b.
struct Paired {
  Timing a, b;
  double ratio;
};
Paired measure_pair(const std::function<void()>& a, const std::function<void()>& b, MeasureOptions = {});

// Checks after the first runs that graphs are not re-recorded, which would be timed: an Error(state) if more than every
// fourth launch recorded an op.
class Recordings {
 public:
  explicit Recordings(const CompileStats& now) : before_(now.recorded_ops), launches_(now.graph_launches) {}
  void check(const CompileStats& now) const;

 private:
  uint64_t before_, launches_;
};

struct Machine {
  std::string cpu, device, backend, compiler;  // "AMD EPYC ...", "cpu", "x86-64-v4, ...", "g++ 12.2.0"
  int cpus, threads;
};
Machine machine(Device = {});
std::string utc_date();  // now: "2026-01-31T12:00:00Z"

}  // namespace tg::bench
