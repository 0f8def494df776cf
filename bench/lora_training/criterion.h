// A benchmark protocol and report as those of Criterion.rs 0.5: warm-up, samples of many iterations, estimates, change
// against the run before, with the files and the text of that program. The arithmetic is in stats.h. Users:
// bench_training.
#pragma once
#include "common/stats.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tg::bench {

struct CriterionOptions {
  double warmup = 3, target = 5;  // seconds
  int samples = 100;
  std::string folder = {};  // of the baselines; empty: nothing is read or kept
  std::string filter = {};  // only ids that contain it
};
struct BenchmarkId {
  std::string group, function, value;  // value: empty, or the parameter
  std::string text() const;            // "group/function/value"
};
struct Benchmark {
  BenchmarkId id;
  std::function<void()> run;              // one iteration; what it queues on a device need not be done when it returns
  std::function<void()> finish = [] {};   // waits for what is queued: ends every sample and is part of its time
  std::optional<uint64_t> elements = {};  // handled by an iteration, for the throughput
  std::optional<int> samples = {};        // in place of those of the options
};
struct Measured {
  BenchmarkId id;
  std::optional<uint64_t> elements;
  SamplingPlan plan;
  Sample sample;
  Estimates estimates;
  Outliers outliers;
  std::optional<Change> change;  // where there was a baseline
};

class Criterion {
 public:
  explicit Criterion(CriterionOptions o) : options_(std::move(o)) {}
  // Measures and prints, progress to stderr and results to stdout; the sample becomes the next run's baseline. False
  // if the filter leaves it out. A baseline that cannot be read is an Error, before anything is measured.
  bool run(const Benchmark&);
  void end_group();  // an empty line, if the group had a benchmark
  const std::vector<Measured>& results() const { return results_; }

 private:
  CriterionOptions options_;
  std::vector<Measured> results_;
  bool group_has_any_ = false;
};

// The formats of the report: four digits and a unit ("436.78 µs"), the same with a sign for changes ("+3.6342%"),
// decimal throughputs ("75.022 Melem/s"), counts ("15k").
std::string format_time(double seconds);
std::string format_change(double ratio);
std::string format_throughput(double elements_per_second);
std::string format_count(uint64_t iterations);
std::string warning(const SamplingPlan&, double target);  // empty where the target is met
std::string report(const Measured&);                      // all lines of stdout

// <folder>/<group>/<function>[/<value>]/{base,new,change}/*.json, times in nanoseconds.
std::optional<Sample> load_baseline(const std::string& folder, const BenchmarkId&);
void save(const std::string& folder, const Measured&);  // the new sample becomes the baseline

}  // namespace tg::bench
