// Statistics of repeated measurements, as Criterion.rs 0.5 takes them: how many iterations each sample runs, estimates
// with confidence intervals by the bootstrap (Efron 1979), comparison with an earlier sample by Welch's t on pooled
// resamples, outliers by Tukey's fences. Numbers in, numbers out: measuring and printing are in criterion.h. The same
// input gives the same output: resampling is seeded.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tg::bench {

enum class Sampling {
  linear,  // sample k of n runs k d iterations
  flat     // all run the same number
};
struct Sample {
  Sampling sampling = Sampling::linear;
  std::vector<double> iterations, seconds;  // per sample: how many, and how long for all of them
  std::vector<double> averages() const;     // seconds per iteration
};

// What to run: `met` is the mean time of an iteration, seen while warming up, `target` the time for all samples. Flat
// where linear sampling would take more than twice the target.
struct SamplingPlan {
  Sampling sampling;
  std::vector<uint64_t> iterations;  // per sample
  double expected;                   // seconds
  // With the least number of iterations the target is missed: how many samples, a multiple of ten, would meet it. 0
  // where it is not missed.
  int fewer_samples;
  uint64_t total() const;
};
SamplingPlan plan_samples(double met, double target, int samples);

// The p-th percentile, p in [0, 100], of sorted numbers, at least one: linear between neighbours, rank p / 100 (n - 1).
double percentile(std::span<const double> sorted, double p);
double mean(std::span<const double>);
double variance(std::span<const double>);  // with n - 1; of at least two
double population_deviation(
    std::span<const double>);  // the standard deviation with n, as NumPy has it; of at least one
double median(std::vector<double>);
double median_absolute_deviation(std::span<const double>);  // times 1.4826: the standard deviation of a normal sample
// Of the line through the origin: sum x y / sum x^2.
double slope(std::span<const double> x, std::span<const double> y);

struct Estimate {
  double low, point, high;  // ends of the confidence interval: percentiles of the bootstrap distribution
  double standard_error;    // its standard deviation
};
struct BootstrapOptions {
  int resamples = 100'000;
  double confidence = 0.95;
  uint64_t seed = 1;
};
struct Estimates {
  Estimate mean, median, std_dev, median_abs_dev;  // of the time of an iteration, in seconds
  Estimate slope;                                  // linear sampling only, else as the mean
  Sampling sampling;
  const Estimate& typical() const {
    return sampling == Sampling::linear ? slope : mean;
  }  // what is printed as the time
};
Estimates estimates(const Sample&, BootstrapOptions = {});  // of two samples or more

enum class Verdict { none, noise, improved, regressed };
struct Change {  // of the new mean time over the old, less one
  Estimate mean, median;
  double t, p;
};
// `now` against `base`, each of two or more. The bootstrap draws ceil(sqrt(resamples)) times from `now`, and for each
// of them about as often from `base`.
Change change(const Sample& now, const Sample& base, BootstrapOptions = {});
// none: p is not below the significance level; noise: the interval reaches into +-threshold.
Verdict verdict(const Change&, double significance = 0.05, double threshold = 0.01);

// Fences at 1.5 and 3 times the distance of the quartiles.
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
