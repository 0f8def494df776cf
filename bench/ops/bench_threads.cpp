// Regions of tiles alternate with a plain loop over them. `of ideal` is the speed-up over the number of threads.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/cpu/runtime/thread_pool.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

#include "common/program.h"
#include "common/stats.h"

namespace {
using namespace tg;
using cpu::parallel_for;

bench::MeasureOptions g_options = {.min_seconds = 1.5, .min_runs = 21};

// A dependent chain: its time depends only on the core's clock.
void spend(int64_t steps) {
  double x = 1;
  for (int64_t i = 0; i < steps; ++i) {
    x = x * 0.999 + 0.5;
    asm volatile("" : "+x"(x));
  }
}
int64_t steps_of_a_microsecond() {
  constexpr int64_t kSteps = 100'000;
  return std::max<int64_t>(1, int64_t(double(kSteps) / (1e6 * bench::measure([] { spend(kSteps); }).median)));
}

class BusyLoop {  // a busy loop on one cpu
 public:
  explicit BusyLoop(int64_t cpu) {
    if (cpu >= 0)
      thread_ = std::jthread([cpu](std::stop_token stop) {
#ifdef __linux__
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(size_t(cpu), &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0) fmt::print("cpu {} cannot be had: the busy loop moves\n", cpu);
#endif
        while (!stop.stop_requested()) spend(1000);
      });
  }

 private:
  std::jthread thread_;
};

void empty_region(const char* name, std::chrono::microseconds pause) {
  std::vector<double> us;
  for (int i = 0; i < (pause.count() ? 200 : 20'000); ++i) {
    if (pause.count()) std::this_thread::sleep_for(pause);
    us.push_back(1e6 * bench::timed([] { parallel_for(cpu::num_threads(), [](int64_t) {}); }));
  }
  const bench::Timing t = bench::summary(us);
  fmt::print("{:<38} {:>10.2f} {:>10.2f} {:>10.2f}\n", name, t.p10, t.median, t.p90);
}
// `times` consecutive regions. us(tile): the duration of a tile.
void regions(const char* name, int64_t times, int64_t tiles, int64_t step, const std::function<int64_t(int64_t)>& us) {
  const auto tile = [&](int64_t t) { spend(step * us(t)); };
  const auto plain = [&] {
    for (int64_t t = 0; t < tiles * times; ++t) tile(t % tiles);
  };
  const auto parallel = [&] {
    for (int64_t i = 0; i < times; ++i) parallel_for(tiles, tile);
  };
  const bench::Paired p = bench::measure_pair(plain, parallel, g_options);
  fmt::print("{:<28} {:>4} x {:>5} {:>10.1f} {:>10.1f} {:>10.2f} {:>9.0f}%\n", name, times, tiles, 1e6 * p.a.median,
             1e6 * p.b.median, p.ratio, 100 * p.ratio / cpu::num_threads());
}
int run(int64_t busy_cpu, bool quick) {
  if (quick) g_options = {.warmup = 0, .min_seconds = 0, .min_runs = 1};
  const int64_t step = steps_of_a_microsecond();
  const BusyLoop busy(busy_cpu);
  fmt::print("{} thread(s) of at most {}\n\n{:<38} {:>10} {:>10} {:>10}\n", cpu::num_threads(), cpu::max_threads(),
             "an empty region, us", "p10", "median", "p90");
  empty_region("workers awake", {});
  empty_region("workers asleep", std::chrono::microseconds(1000));
  fmt::print("\n{:<28} {:>12} {:>10} {:>10} {:>10} {:>10}\n", "tiles", "regions of", "loop, us", "regions, us", "ratio",
             "of ideal");
  const auto one = [](int64_t) { return 1; };
  for (const int64_t tiles : {2, 8, 64, 1024, 16384}) regions("1 us each", 1, tiles, step, one);
  for (const int64_t tiles : {2, 8, 64}) regions("1 us each", 200, tiles, step, one);
  for (const int64_t tiles : {2, 16, 128}) regions("100 us each", 1, tiles, step, [](int64_t) { return 100; });
  regions("100 us each", 10, 16, step, [](int64_t) { return 100; });
  regions("t us, as under a diagonal", 1, 64, step, [](int64_t t) { return t; });
  regions("1 us, the last 64 us", 1, 256, step, [](int64_t t) { return t == 255 ? 64 : 1; });
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  int64_t busy_cpu = -1;
  bool quick = false;
  const auto declare = [&](bench::Command& c) {
    c.option("--busy-cpu", "a busy loop on that cpu meanwhile; -1: none", busy_cpu, -1, 1023);
    c.toggle("--quick", "each row once, as a test", quick);
    return [&] { return run(busy_cpu, quick); };
  };
  return apps::run_program(argc, argv, {"bench_threads", "Measures the thread pool of the CPU backend.", declare});
}
