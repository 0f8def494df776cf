// bench/common/stats.h and bench/lora_training/criterion.h against worked numbers.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>
#include "../bench/lora_training/criterion.h"

#include "support/helpers.h"

using namespace tg;
using namespace tg::bench;
using doctest::Approx;

namespace {
// Box-Muller on equally spaced points in a mixed order.
std::vector<double> normal(int n, double mean, double deviation, int shift = 0) {
  std::vector<double> x;
  for (int i = 0; i < n; ++i) {
    const double u = (double((i * 37 + shift) % n) + 0.5) / n, v = (double((i * 61 + shift) % n) + 0.5) / n;
    x.push_back(mean + deviation * std::sqrt(-2 * std::log(u)) * std::cos(2 * 3.14159265358979 * v));
  }
  return x;
}
Sample flat(std::vector<double> seconds) {
  return {Sampling::flat, std::vector<double>(seconds.size(), 1), std::move(seconds)};
}
}  // namespace

TEST_CASE("schedules: mode, iterations and warning from the mean time of one") {
  // Estimated seconds and iterations of 17 published benchmarks. Their ratio is the mean time.
  struct Row {
    double expected;
    uint64_t total;
    Sampling sampling;
    int samples, fewer;
  };
  constexpr auto kLinear = Sampling::linear, kFlat = Sampling::flat;
  const Row rows[] = {
      {5.2939, 15150, kLinear, 100, 0},  {8.3339, 10100, kLinear, 100, 0},  {5.2117, 2100, kFlat, 100, 0},
      {5.6583, 600, kFlat, 100, 0},      {5.2914, 800, kFlat, 100, 0},      {9.2580, 5050, kLinear, 100, 50},
      {5.0481, 1320, kLinear, 10, 0},    {5.1732, 116150, kLinear, 100, 0}, {5.0856, 106050, kLinear, 100, 0},
      {5.0218, 196950, kLinear, 100, 0}, {7.5014, 10100, kLinear, 100, 0},  {7.4357, 5050, kLinear, 100, 50},
      {5.0773, 2100, kFlat, 100, 0},     {5.0175, 1500, kFlat, 100, 0},     {5.4156, 1200, kFlat, 100, 0},
      {5.7569, 5050, kLinear, 100, 60},  {5.0944, 2500, kFlat, 100, 0}};
  for (const Row& r : rows) {
    CAPTURE(r.expected);
    const SamplingPlan s = plan_samples(r.expected / double(r.total), 5, r.samples);
    CHECK(s.sampling == r.sampling);
    CHECK(s.total() == r.total);
    CHECK(s.expected == Approx(r.expected));
    CHECK(s.fewer_samples == r.fewer);
    CHECK(int(s.iterations.size()) == r.samples);
    CHECK(warning(s, 5).empty() == (r.fewer == 0));
  }
  const SamplingPlan linear = plan_samples(1e-6, 5, 4);  // 10 units of 500 000
  CHECK(linear.iterations == std::vector<uint64_t>{500'000, 1'000'000, 1'500'000, 2'000'000});
  CHECK(warning(plan_samples(9.2580 / 5050, 5, 100), 5) ==
        "\nWarning: Unable to complete 100 samples in 5.0s. You may wish to increase target time to 9.3s, enable flat "
        "sampling, or reduce sample count to 50.");
  const SamplingPlan slow = plan_samples(0.2, 5, 100);
  CHECK(slow.sampling == Sampling::flat);
  CHECK(slow.total() == 100);
  CHECK(warning(slow, 5) ==
        "\nWarning: Unable to complete 100 samples in 5.0s. You may wish to increase target time to 20.0s, or reduce "
        "sample count to 20.");
}

TEST_CASE("percentiles, moments, slope, fences: worked by hand") {
  const std::vector<double> x{1, 2, 4, 8};
  CHECK(percentile(x, 0) == 1);
  CHECK(percentile(x, 100) == 8);
  CHECK(percentile(x, 50) == 3);
  CHECK(percentile(x, 75) == 5);  // rank 2.25: 4 + 0.25 * 4
  CHECK(percentile({{7.0}}, 31) == 7);
  CHECK(mean(x) == 3.75);
  CHECK(variance(x) == Approx((2.75 * 2.75 + 1.75 * 1.75 + 0.25 * 0.25 + 4.25 * 4.25) / 3));
  CHECK(median({8, 1, 4, 2}) == 3);
  CHECK(median_absolute_deviation(x) == Approx(1.4826 * 1.5));  // distances 2, 1, 1, 5
  CHECK(slope({{1.0, 2, 3}}, {{2.0, 4, 9}}) == Approx(37.0 / 14));
  // 1 .. 8 and three far away: quartiles 3.5 and 8.5, fences at -4, -11.5, 16, 23.5
  const std::vector<double> y{1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 24};
  const Fences f = fences(y);
  CHECK(f.low_severe == -11.5);
  CHECK(f.low_mild == -4);
  CHECK(f.high_mild == 16);
  CHECK(f.high_severe == 23.5);
  const Outliers o = outliers({{-20.0, -11.5, -5, -4, 0, 16, 17, 23.5, 24}}, f);
  CHECK(o.low_severe == 1);
  CHECK(o.low_mild == 2);
  CHECK(o.high_mild == 2);
  CHECK(o.high_severe == 1);
  CHECK(o.total() == 6);
}

TEST_CASE("estimates: intervals of a normal sample") {
  const std::vector<double> x = normal(100, 10, 1);
  const Estimates e = estimates(flat(x));
  const double error = std::sqrt(variance(x)) / 10;  // standard error of the mean
  CHECK(e.mean.point == Approx(mean(x)));
  CHECK(e.mean.standard_error == Approx(error * std::sqrt(0.99)).epsilon(0.02));  // resampling divides by n
  CHECK(e.mean.low == Approx(e.mean.point - 1.96 * error).epsilon(0.002));
  CHECK(e.mean.high == Approx(e.mean.point + 1.96 * error).epsilon(0.002));
  CHECK(e.median.low < e.median.point);
  CHECK(e.median.point < e.median.high);
  CHECK(e.std_dev.point == Approx(std::sqrt(variance(x))));
  CHECK(e.median_abs_dev.point == Approx(median_absolute_deviation(x)));
  CHECK(&e.typical() == &e.mean);
  CHECK(estimates(flat(x)).mean.low == e.mean.low);
  Sample linear{Sampling::linear, {}, {}};
  for (int k = 1; k <= 50; ++k) {
    linear.iterations.push_back(k);
    linear.seconds.push_back(2.0 * k);
  }
  const Estimates exact = estimates(linear, {.resamples = 1000});
  CHECK(&exact.typical() == &exact.slope);
  CHECK(exact.slope.low == Approx(2));
  CHECK(exact.slope.high == Approx(2));
  linear.seconds.back() = 200;  // the slope moves more than the mean
  const Estimates bent = estimates(linear, {.resamples = 1000});
  CHECK(bent.mean.point == Approx(2.04));
  CHECK(bent.slope.point == Approx(slope(linear.iterations, linear.seconds)));
  CHECK(bent.slope.point > 2.1);
}

TEST_CASE("changes: ratio of means, Welch's t, p by pooled resampling, verdicts") {
  const std::vector<double> x = normal(100, 10, 1), same = normal(100, 10, 1, 13), slower = normal(100, 11, 1, 29);
  const Change none = change(flat(same), flat(x));
  CHECK(std::abs(none.mean.point) < 0.03);
  CHECK(none.p > 0.05);
  CHECK(verdict(none) == Verdict::none);
  const Change worse = change(flat(slower), flat(x));
  CHECK(worse.mean.point == Approx(mean(slower) / mean(x) - 1));
  CHECK(worse.median.point == Approx(median(slower) / median(x) - 1));
  CHECK(worse.t == Approx((mean(slower) - mean(x)) / std::sqrt((variance(slower) + variance(x)) / 100)));
  CHECK(worse.p == 0);
  CHECK(worse.mean.low > 0.05);
  CHECK(verdict(worse) == Verdict::regressed);
  CHECK(verdict(change(flat(x), flat(slower))) == Verdict::improved);
  const Change small = change(flat(normal(100, 10.05, 0.01, 7)), flat(normal(100, 10, 0.01)));
  CHECK(small.p == 0);
  CHECK(verdict(small) == Verdict::noise);
  // t of two small samples by hand: means 2 and 4, variances 1 and 4
  CHECK(change(flat({1, 2, 3}), flat({2, 4, 6})).t == Approx(-2 / std::sqrt(1.0 / 3 + 4.0 / 3)));
  // A difference of one standard error has a p-value of about 0.32
  std::vector<double> moved = x;
  const double by = std::sqrt(2 * variance(x) / 100);
  for (double& v : moved) v += by;
  CHECK(change(flat(moved), flat(x)).p == Approx(0.32).epsilon(0.1));
}

TEST_CASE("the text of the report") {
  CHECK(format_time(436.78e-6) == "436.78 µs");
  CHECK(format_time(1.5802e-3) == "1.5802 ms");
  CHECK(format_time(15.674e-3) == "15.674 ms");
  CHECK(format_time(3) == "3.0000 s");
  CHECK(format_time(12e-12) == "12.000 ps");
  CHECK(format_time(999e-9) == "999.00 ns");
  CHECK(format_time(12345) == " 12345 s");
  CHECK(format_change(0.036342) == "+3.6342%");
  CHECK(format_change(-0.135) == "-13.500%");
  CHECK(format_change(1.3091) == "+130.91%");
  CHECK(format_throughput(75.022e6) == "75.022 Melem/s");
  CHECK(format_throughput(2090) == "2.0900 Kelem/s");
  CHECK(format_throughput(5) == "5.0000 elem/s");
  CHECK(format_throughput(3.5e9) == "3.5000 Gelem/s");
  CHECK(format_count(9999) == "9999");
  CHECK(format_count(15150) == "15k");
  CHECK(format_count(1'234'567) == "1.2M");
  CHECK(format_count(12'345'678) == "12M");

  Measured m{{"group", "function", "value"}, 32768, {}, {}, {}, {}, {}};
  m.sample.seconds.resize(100);
  m.estimates.sampling = Sampling::linear;
  m.estimates.slope = {427.63e-6, 436.78e-6, 445.73e-6, 0};
  m.change = Change{{-0.072627, 0.036342, 0.15601, 0}, {}, 1, 0.53};
  m.outliers = {8, 0, 3, 2};
  CHECK(report(m) ==
        "group/function/value\n"
        "                        time:   [427.63 µs 436.78 µs 445.73 µs]\n"
        "                        thrpt:  [73.515 Melem/s 75.022 Melem/s 76.627 Melem/s]\n"
        "                 change:\n"
        "                        time:   [-7.2627% +3.6342% +15.601%] (p = 0.53 > 0.05)\n"
        "                        thrpt:  [-13.496% -3.5068% +7.8315%]\n"
        "                        No change in performance detected.\n"
        "Found 13 outliers among 100 measurements (13.00%)\n"
        "  8 (8.00%) low severe\n"
        "  3 (3.00%) high mild\n"
        "  2 (2.00%) high severe\n");
  m.id.value.clear();
  m.elements.reset();
  m.outliers = {};
  m.change = Change{{-0.036415, -0.03065, -0.024985, 0}, {}, -9, 0};
  CHECK(report(m) ==
        "group/function\n"
        "                        time:   [427.63 µs 436.78 µs 445.73 µs]\n"
        "                        change: [-3.6415% -3.0650% -2.4985%] (p = 0.00 < 0.05)\n"
        "                        Performance has improved.\n");
}

TEST_CASE("a run measures, ends each sample synchronised, and is the next run's baseline") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / fmt::format("tapegrad_criterion_{}", ::getpid());
  fs::remove_all(folder);
  int runs = 0, ends = 0;
  Benchmark b{{"group", "sleep", ""},
              [&] { ++runs; },
              [&] { ++ends, std::this_thread::sleep_for(std::chrono::microseconds(200)); },
              1000,
              10};
  const CriterionOptions o{.warmup = 0.002, .target = 0.02, .folder = folder.string()};
  const Measured m = measured(b, o);
  CHECK(!m.change);
  CHECK(m.sample.seconds.size() == 10);
  CHECK(ends > 10);
  CHECK(uint64_t(runs) > m.plan.total());
  for (const double s : m.sample.seconds) CHECK(s >= 200e-6);
  const std::optional<Sample> kept = load_baseline(folder.string(), b.id);
  REQUIRE(kept);
  CHECK(kept->iterations == m.sample.iterations);
  for (size_t i = 0; i < 10; ++i) CHECK(kept->seconds[i] == Approx(m.sample.seconds[i]));
  for (const char* file : {"base/sample.json", "base/estimates.json", "base/tukey.json", "new/benchmark.json"})
    CHECK(fs::exists(folder / "group" / "sleep" / file));
  CHECK(measured(b, o).change);
  CHECK(fs::exists(folder / "group/sleep/change/estimates.json"));
  for (const char* text : {"{", "{}", R"({"sampling_mode": "Flat", "iters": [1, 1], "times": [1]})",
                           R"({"sampling_mode": "Flat", "iters": [1, 0], "times": [1, 1]})",
                           R"({"sampling_mode": "Flat", "iters": ["a"], "times": [1]})"}) {
    std::ofstream(folder / "group/sleep/base/sample.json") << text;
    runs = 0;
    const std::string e = error_of([&] { measured(b, {.folder = folder.string()}); });
    CAPTURE(e);
    CHECK_HAS(e, "[criterion] ", "base/sample.json cannot be read: ");
    CHECK(runs == 0);
  }
  fs::remove_all(folder);
}
