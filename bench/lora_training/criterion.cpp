#include "lora_training/criterion.h"

#include <fmt/format.h>
#include <tapegrad/core/check.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "common/harness.h"

namespace tg::bench {
namespace {

constexpr double kSignificance = 0.05;

std::string four_digits(double x) {
  const double a = std::abs(x);
  return fmt::format("{:.{}f}", x, a < 10 ? 4 : a < 100 ? 3 : a < 1000 ? 2 : a < 10'000 ? 1 : 0);
}
std::string triple(std::string (*format)(double), double a, double b, double c) {
  return fmt::format("[{} {} {}]", format(a), format(b), format(c));
}
double slower(double change) { return 1 / (1 + change) - 1; }  // change of the throughput

void say(const BenchmarkId& id, const std::string& what) {
  fmt::print(stderr, "Benchmarking {}{}\n", id.text(), what);
  std::fflush(stderr);
}
double timed(const Benchmark& b, uint64_t iterations) {
  const double start = now();
  for (uint64_t i = 0; i < iterations; ++i) b.run();
  b.finish();
  return now() - start;
}
// Runs batches of 1, 2, 4 ... iterations; returns the mean time of one.
double warm_up(const Benchmark& b, double seconds) {
  double spent = 0;
  uint64_t done = 0;
  for (uint64_t n = 1; spent <= seconds; n *= 2) {
    spent += timed(b, n);
    done += n;
  }
  return spent / double(done);
}

}  // namespace

std::string BenchmarkId::text() const {
  return value.empty() ? fmt::format("{}/{}", group, function) : fmt::format("{}/{}/{}", group, function, value);
}

std::string format_time(double seconds) {
  static constexpr std::array<std::pair<double, const char*>, 4> kUnits{
      {{1e-9, "ps"}, {1e-6, "ns"}, {1e-3, "µs"}, {1, "ms"}}};
  double scale = 1e12;
  for (const auto& [below, unit] : kUnits) {
    if (seconds < below) return fmt::format("{:>6} {}", four_digits(seconds * scale), unit);
    scale /= 1e3;
  }
  return fmt::format("{:>6} s", four_digits(seconds));
}
std::string format_change(double ratio) {
  const double percent = 100 * ratio;
  return fmt::format("{:>6}%", (percent >= 0 ? "+" : "") + four_digits(percent));
}
std::string format_throughput(double x) {
  constexpr const char* kUnits[] = {"elem/s", "Kelem/s", "Melem/s", "Gelem/s"};
  size_t unit = 0;
  for (; x >= 1e3 && unit < 3; ++unit) x /= 1e3;
  return fmt::format("{:>6} {}", four_digits(x), kUnits[unit]);
}
std::string format_count(uint64_t n) {
  const auto x = double(n);
  if (n < 10'000) return fmt::format("{}", n);
  if (n < 1'000'000) return fmt::format("{:.0f}k", x / 1e3);
  if (n < 10'000'000) return fmt::format("{:.1f}M", x / 1e6);
  if (n < 1'000'000'000) return fmt::format("{:.0f}M", x / 1e6);
  return fmt::format("{:.1f}B", x / 1e9);
}
std::string warning(const SamplingPlan& s, double target) {
  if (s.fewer_samples == 0) return {};
  const auto seconds = [](double x) { return x < 0.1 ? fmt::format("{:.1g}s", x) : fmt::format("{:.1f}s", x); };
  const bool flat = s.sampling == Sampling::linear, fewer = size_t(s.fewer_samples) < s.iterations.size();
  return fmt::format("\nWarning: Unable to complete {} samples in {}. You may wish to increase target time to {}{}{}.",
                     s.iterations.size(), seconds(target), seconds(s.expected),
                     flat ? fewer ? ", enable flat sampling" : " or enable flat sampling" : "",
                     fewer ? fmt::format(", or reduce sample count to {}", s.fewer_samples) : "");
}

std::string report(const Measured& m) {
  constexpr const char* kIndent = "                        ";
  const Estimate& t = m.estimates.typical();
  std::string r = m.id.text() + '\n' + kIndent + "time:   " + triple(format_time, t.low, t.point, t.high) + '\n';
  const double n = m.elements ? double(*m.elements) : 0;
  if (m.elements)
    r += fmt::format("{}thrpt:  {}\n", kIndent, triple(format_throughput, n / t.high, n / t.point, n / t.low));
  if (m.change) {
    const Estimate& c = m.change->mean;
    const std::string p =
        fmt::format("(p = {:.2f} {} {:.2f})", m.change->p, m.change->p < kSignificance ? '<' : '>', kSignificance);
    const std::string times = triple(format_change, c.low, c.point, c.high);
    if (m.elements)
      r += fmt::format("                 change:\n{0}time:   {1} {2}\n{0}thrpt:  {3}\n", kIndent, times, p,
                       triple(format_change, slower(c.high), slower(c.point), slower(c.low)));
    else
      r += fmt::format("{}change: {} {}\n", kIndent, times, p);
    constexpr const char* kVerdicts[] = {"No change in performance detected.", "Change within noise threshold.",
                                         "Performance has improved.", "Performance has regressed."};
    r += fmt::format("{}{}\n", kIndent, kVerdicts[size_t(verdict(*m.change, kSignificance))]);
  }
  const size_t samples = m.sample.seconds.size();
  const auto share = [samples](int count) { return 100 * double(count) / double(samples); };
  if (const int all = m.outliers.total())
    r += fmt::format("Found {} outliers among {} measurements ({:.2f}%)\n", all, samples, share(all));
  for (const auto& [count, name] : {std::pair(m.outliers.low_severe, "low severe"),
                                    {m.outliers.low_mild, "low mild"},
                                    {m.outliers.high_mild, "high mild"},
                                    {m.outliers.high_severe, "high severe"}})
    if (count) r += fmt::format("  {} ({:.2f}%) {}\n", count, share(count), name);
  return r;
}

Measured measured(const Benchmark& b, const CriterionOptions& o) {
  std::optional<Sample> base;
  if (!o.folder.empty()) base = load_baseline(o.folder, b.id);
  say(b.id, "");
  say(b.id, fmt::format(": Warming up for {}", format_time(o.warmup)));
  const double met = warm_up(b, o.warmup);
  Measured m{b.id, b.elements, plan_samples(met, o.target, b.samples.value_or(o.samples)), {}, {}, {}, {}};
  if (const std::string w = warning(m.plan, o.target); !w.empty()) fmt::print(stderr, "{}\n", w);
  say(b.id, fmt::format(": Collecting {} samples in estimated {} ({} iterations)", m.plan.iterations.size(),
                        format_time(m.plan.expected), format_count(m.plan.total())));
  m.sample.sampling = m.plan.sampling;
  for (const uint64_t n : m.plan.iterations) {
    m.sample.iterations.push_back(double(n));
    m.sample.seconds.push_back(timed(b, n));
  }
  say(b.id, ": Analyzing");
  m.estimates = estimates(m.sample);
  const std::vector<double> averages = m.sample.averages();
  m.outliers = outliers(averages, fences(averages));
  if (base) m.change = change(m.sample, *base);
  fmt::print("{}", report(m));
  std::fflush(stdout);
  if (!o.folder.empty()) save(o.folder, m);
  return m;
}

}  // namespace tg::bench
