// Statistics after Criterion.rs 0.5: iterations per sample, bootstrap confidence intervals (Efron 1979), comparison
// with an earlier sample by Welch's t on pooled resamples, outliers by Tukey's fences. Pure functions with seeded
// resampling.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tg::bench {

enum class Sampling {
  linear,  // sample k of n runs k d iterations
  flat
};
struct Sample {
  Sampling sampling = Sampling::linear;
  std::vector<double> iterations, seconds;  // each sample's count and total time
  std::vector<double> averages() const;
};

// A plan for `target` seconds; `met` is an iteration's mean time in warm-up. Flat if linear sampling would take over
// twice the target.
struct SamplingPlan {
  Sampling sampling;
  std::vector<uint64_t> iterations;  // indexed by sample
  double expected;                   // seconds
  // Number of samples (a multiple of ten) that meets a missed target; 0 if it is met.
  int fewer_samples;
  uint64_t total() const;
};
SamplingPlan plan_samples(double met, double target, int samples);

// The p-th percentile, p in [0, 100], of n >= 1 sorted numbers: linear between them, rank p / 100 (n - 1).
double percentile(std::span<const double> sorted, double p);
double mean(std::span<const double>);
double variance(std::span<const double>);              // divides by n - 1; at least two
double population_deviation(std::span<const double>);  // divides by n, like NumPy's std; at least one
double median(std::vector<double>);
double median_absolute_deviation(std::span<const double>);  // times 1.4826: consistent with a normal std
// Slope of the line through the origin: sum x y / sum x^2.
double slope(std::span<const double> x, std::span<const double> y);

struct Estimate {
  double low, point, high;  // percentiles of the bootstrap distribution
  double standard_error;
};
struct BootstrapOptions {
  int resamples = 100'000;
  double confidence = 0.95;
  uint64_t seed = 1;
};
struct Estimates {
  Estimate mean, median, std_dev, median_abs_dev;  // seconds of an iteration
  Estimate slope;                                  // linear sampling only, else the mean
  Sampling sampling;
  const Estimate& typical() const { return sampling == Sampling::linear ? slope : mean; }  // the reported time
};
Estimates estimates(const Sample&, BootstrapOptions = {});  // needs two samples

enum class Verdict { none, noise, improved, regressed };
struct Change {  // new mean / old - 1
  Estimate mean, median;
  double t, p;
};
// `now` against `base`, at least two each. The bootstrap draws ceil(sqrt(resamples)) times from `now`, and for each
// about that often from `base`.
Change change(const Sample& now, const Sample& base, BootstrapOptions = {});
// none: p is not significant; noise: the interval overlaps +-threshold.
Verdict verdict(const Change&, double significance = 0.05, double threshold = 0.01);

// Fences at 1.5 and 3 interquartile ranges.
struct Fences {
  double low_severe, low_mild, high_mild, high_severe;
};
struct Outliers {
  int low_severe = 0, low_mild = 0, high_mild = 0, high_severe = 0;
  int total() const { return low_severe + low_mild + high_mild + high_severe; }
};
Fences fences(std::vector<double>);
Outliers outliers(std::span<const double>, const Fences&);

}  // namespace tg::bench
