// A protocol and report like Criterion.rs 0.5, with its files and text: warm-up, samples of many iterations, estimates,
// change against the previous run.
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
  std::string folder = {};  // baselines; empty: none
};
struct BenchmarkId {
  std::string group, function, value;  // value: empty, or the parameter
  std::string text() const;            // "group/function/value"
};
struct Benchmark {
  BenchmarkId id;
  std::function<void()> run;             // one iteration; device work may still be in flight
  std::function<void()> finish = [] {};  // waits for device work; timed at the end of each sample
  std::optional<uint64_t> elements = {};
  std::optional<int> samples = {};  // overrides the options
};
struct Measured {
  BenchmarkId id;
  std::optional<uint64_t> elements;
  SamplingPlan plan;
  Sample sample;
  Estimates estimates;
  Outliers outliers;
  std::optional<Change> change;      // if there was a baseline
  std::optional<double> limit = {};  // seconds, by the machine's rates
};

// Measures and prints: progress to stderr, results to stdout. The sample becomes the next baseline. An unreadable
// baseline is an Error before measuring.
Measured measured(const Benchmark&, const CriterionOptions&);

// Formats of the report: four digits and a unit ("436.78 µs"), signed for changes ("+3.6342%"), decimal throughputs
// ("75.022 Melem/s"), counts ("15k").
std::string format_time(double seconds);
std::string format_change(double ratio);
std::string format_throughput(double elements_per_second);
std::string format_count(uint64_t iterations);
std::string warning(const SamplingPlan&, double target);  // empty if the target is met
std::string report(const Measured&);

// <folder>/<group>/<function>[/<value>]/{base,new,change}/*.json, times in nanoseconds.
std::optional<Sample> load_baseline(const std::string& folder, const BenchmarkId&);
void save(const std::string& folder, const Measured&);  // the new sample becomes the baseline

}  // namespace tg::bench
