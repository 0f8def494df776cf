#include "common/stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace tg::bench {
namespace {

// Draws indices; the same on every platform, unlike std::uniform_int_distribution.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  size_t operator()(size_t n) { return size_t((engine_() >> 32) * uint64_t(n) >> 32); }
  void fill(std::vector<double>& to, std::span<const double> from) {
    for (double& x : to) x = from[(*this)(from.size())];
  }

 private:
  std::mt19937_64 engine_;
};

double squares(std::span<const double> x) {
  const double m = mean(x);
  double sum = 0;
  for (const double v : x) sum += (v - m) * (v - m);
  return sum;
}

Estimate estimate(double point, std::vector<double> distribution, double confidence) {
  Estimate e{0, point, 0, std::sqrt(variance(distribution))};
  std::sort(distribution.begin(), distribution.end());
  e.low = percentile(distribution, 50 * (1 - confidence));
  e.high = percentile(distribution, 50 * (1 + confidence));
  return e;
}

double sorted_median(std::span<const double> sorted) { return percentile(sorted, 50); }
double deviation_from(std::span<const double> x, double centre, std::vector<double>& scratch) {
  scratch.clear();
  for (const double v : x) scratch.push_back(std::abs(v - centre));
  std::sort(scratch.begin(), scratch.end());
  return 1.4826 * sorted_median(scratch);
}

double welch(std::span<const double> x, std::span<const double> y) {
  return (mean(x) - mean(y)) / std::sqrt(variance(x) / double(x.size()) + variance(y) / double(y.size()));
}

// Two-sided: how often samples of one common distribution differ as much.
double p_value(double t, std::span<const double> x, std::span<const double> y, const BootstrapOptions& o) {
  std::vector<double> pool(x.begin(), x.end());
  pool.insert(pool.end(), y.begin(), y.end());
  std::vector<double> drawn(pool.size());
  Draw draw(o.seed + 2);
  int64_t below = 0, all = 0;
  for (int i = 0; i < o.resamples; ++i) {
    draw.fill(drawn, pool);
    const std::span<const double> d(drawn);
    const double s = welch(d.first(x.size()), d.subspan(x.size()));
    if (!std::isfinite(s)) continue;
    ++all;
    below += s < t;
  }
  return all ? 2 * double(std::min(below, all - below)) / double(all) : 1;
}

}  // namespace

std::vector<double> Sample::averages() const {
  std::vector<double> a(seconds.size());
  for (size_t i = 0; i < a.size(); ++i) a[i] = seconds[i] / iterations[i];
  return a;
}
uint64_t SamplingPlan::total() const { return std::accumulate(iterations.begin(), iterations.end(), uint64_t(0)); }

SamplingPlan plan_samples(double met, double target, int samples) {
  const auto n = uint64_t(samples), rounds = n * (n + 1) / 2;
  const auto step = std::max<uint64_t>(1, uint64_t(std::ceil(target / met / double(rounds))));
  const auto tens = [](double count) { return std::max(10, int(count) / 10 * 10); };
  if (const double expected = double(rounds * step) * met; expected <= 2 * target) {
    SamplingPlan s{Sampling::linear, {}, expected, 0};
    for (uint64_t k = 1; k <= n; ++k) s.iterations.push_back(k * step);
    if (step == 1) s.fewer_samples = tens((std::sqrt(4 * target / met) - 1) / 2);
    return s;
  }
  const auto each = std::max<uint64_t>(1, uint64_t(std::ceil(target / double(n) / met)));
  return {Sampling::flat, std::vector<uint64_t>(n, each), double(n * each) * met, each == 1 ? tens(target / met) : 0};
}

double percentile(std::span<const double> sorted, double p) {
  const double rank = p / 100 * double(sorted.size() - 1), below = std::floor(rank);
  const auto i = size_t(below);
  if (i + 1 >= sorted.size()) return sorted.back();
  return sorted[i] + (rank - below) * (sorted[i + 1] - sorted[i]);
}
double mean(std::span<const double> x) { return std::accumulate(x.begin(), x.end(), 0.0) / double(x.size()); }
double variance(std::span<const double> x) { return squares(x) / double(x.size() - 1); }
double population_deviation(std::span<const double> x) { return std::sqrt(squares(x) / double(x.size())); }
double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return sorted_median(x);
}
double median_absolute_deviation(std::span<const double> x) {
  std::vector<double> scratch;
  return deviation_from(x, median({x.begin(), x.end()}), scratch);
}
double slope(std::span<const double> x, std::span<const double> y) {
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0) /
         std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
}

Estimates estimates(const Sample& s, BootstrapOptions o) {
  const std::vector<double> x = s.averages();
  std::vector<double> means, medians, deviations, absolute, drawn(x.size()), scratch;
  Draw draw(o.seed);
  for (int i = 0; i < o.resamples; ++i) {
    draw.fill(drawn, x);
    means.push_back(mean(drawn));
    deviations.push_back(std::sqrt(variance(drawn)));
    std::sort(drawn.begin(), drawn.end());
    medians.push_back(sorted_median(drawn));
    absolute.push_back(deviation_from(drawn, medians.back(), scratch));
  }
  Estimates e{.mean = estimate(mean(x), std::move(means), o.confidence),
              .median = estimate(median(x), std::move(medians), o.confidence),
              .std_dev = estimate(std::sqrt(variance(x)), std::move(deviations), o.confidence),
              .median_abs_dev = estimate(median_absolute_deviation(x), std::move(absolute), o.confidence),
              .slope = {},
              .sampling = s.sampling};
  e.slope = e.mean;
  if (s.sampling == Sampling::flat) return e;
  std::vector<double> slopes;
  Draw pairs(o.seed + 1);
  for (int i = 0; i < o.resamples; ++i) {
    double xy = 0, xx = 0;
    for (size_t k = 0; k < x.size(); ++k) {
      const size_t j = pairs(x.size());
      xy += s.iterations[j] * s.seconds[j];
      xx += s.iterations[j] * s.iterations[j];
    }
    slopes.push_back(xy / xx);
  }
  e.slope = estimate(slope(s.iterations, s.seconds), std::move(slopes), o.confidence);
  return e;
}

Change change(const Sample& now, const Sample& base, BootstrapOptions o) {
  const std::vector<double> x = now.averages(), y = base.averages();
  const int outer = int(std::ceil(std::sqrt(double(o.resamples)))), inner = (o.resamples + outer - 1) / outer;
  std::vector<double> means, medians, a(x.size()), b(y.size());
  Draw draw(o.seed);
  for (int i = 0; i < outer; ++i) {
    draw.fill(a, x);
    const double mean_a = mean(a), median_a = median(a);
    for (int j = 0; j < inner; ++j) {
      draw.fill(b, y);
      means.push_back(mean_a / mean(b) - 1);
      std::sort(b.begin(), b.end());
      medians.push_back(median_a / sorted_median(b) - 1);
    }
  }
  const double t = welch(x, y);
  return {estimate(mean(x) / mean(y) - 1, std::move(means), o.confidence),
          estimate(median(x) / median(y) - 1, std::move(medians), o.confidence), t, p_value(t, x, y, o)};
}

Verdict verdict(const Change& c, double significance, double threshold) {
  if (!(c.p < significance)) return Verdict::none;
  if (c.mean.low < -threshold && c.mean.high < -threshold) return Verdict::improved;
  if (c.mean.low > threshold && c.mean.high > threshold) return Verdict::regressed;
  return Verdict::noise;
}

Fences fences(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const double q1 = percentile(x, 25), q3 = percentile(x, 75), range = q3 - q1;
  return {q1 - 3 * range, q1 - 1.5 * range, q3 + 1.5 * range, q3 + 3 * range};
}
Outliers outliers(std::span<const double> x, const Fences& f) {
  Outliers o;
  for (const double v : x) {
    o.low_severe += v < f.low_severe;
    o.low_mild += v >= f.low_severe && v < f.low_mild;
    o.high_mild += v > f.high_mild && v <= f.high_severe;
    o.high_severe += v > f.high_severe;
  }
  return o;
}

}  // namespace tg::bench
