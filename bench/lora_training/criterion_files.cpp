// Baselines of criterion.h on disk, in the layout of Criterion.rs 0.5.
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>

#include <filesystem>

#include "common/program.h"
#include "lora_training/criterion.h"

namespace tg::bench {
namespace fs = std::filesystem;

namespace {
constexpr double kNanoseconds = 1e9;

std::string safe(std::string s) {  // folder name
  for (char& c : s)
    if (std::string_view("?\"/\\*<>:|^").find(c) != std::string_view::npos) c = '_';
  return s;
}
fs::path folder_of(const std::string& root, const BenchmarkId& id) {
  fs::path p = fs::path(root) / safe(id.group) / safe(id.function);
  return id.value.empty() ? p : p / safe(id.value);
}
Json scaled(std::vector<double> x, double by) {
  for (double& v : x) v *= by;
  return x;
}
Json json_of(const Estimate& e, double by) {
  return {{"confidence_interval",
           {{"confidence_level", BootstrapOptions().confidence},
            {"lower_bound", e.low * by},
            {"upper_bound", e.high * by}}},
          {"point_estimate", e.point * by},
          {"standard_error", e.standard_error * by}};
}
}  // namespace

std::optional<Sample> load_baseline(const std::string& root, const BenchmarkId& id) {
  const fs::path path = folder_of(root, id) / "base" / "sample.json";
  if (!fs::exists(path)) return {};
  const auto unreadable = [&](std::string_view why) {
    return Error(Error::Kind::io, fmt::format("[criterion] {} cannot be read: {}. Remove it, or name another folder.",
                                              path.string(), why));
  };
  Sample s;
  try {
    const Json j = detail::own_json(MappedFile(path.string()).text());
    s.sampling = j.at("sampling_mode") == "Linear" ? Sampling::linear : Sampling::flat;
    s.iterations = j.at("iters").get<std::vector<double>>();
    s.seconds = j.at("times").get<std::vector<double>>();
  } catch (const Error& e) {
    throw unreadable(e.what());
  }
  if (s.seconds.size() != s.iterations.size() || s.seconds.size() < 2)
    throw unreadable(fmt::format("it has {} iters and {} times, and needs as many of both, two or more",
                                 s.iterations.size(), s.seconds.size()));
  for (size_t i = 0; i < s.seconds.size(); ++i) {
    if (!(s.iterations[i] >= 1 && s.seconds[i] > 0)) throw unreadable("a number is not more than 0");
    s.seconds[i] /= kNanoseconds;
  }
  return s;
}

void save(const std::string& root, const Measured& m) {
  const fs::path folder = folder_of(root, m.id);
  const std::vector<double> averages = m.sample.averages();
  const Fences f = fences(averages);
  const Estimates& e = m.estimates;
  const bool linear = m.sample.sampling == Sampling::linear;
  const Json sample = {{"sampling_mode", linear ? "Linear" : "Flat"},
                       {"iters", m.sample.iterations},
                       {"times", scaled(m.sample.seconds, kNanoseconds)}};
  Json numbers = {{"mean", json_of(e.mean, kNanoseconds)},
                  {"median", json_of(e.median, kNanoseconds)},
                  {"median_abs_dev", json_of(e.median_abs_dev, kNanoseconds)},
                  {"slope", nullptr},
                  {"std_dev", json_of(e.std_dev, kNanoseconds)}};
  if (linear) numbers["slope"] = json_of(e.slope, kNanoseconds);
  Json benchmark = {{"group_id", m.id.group}, {"function_id", m.id.function},
                    {"value_str", nullptr},   {"throughput", nullptr},
                    {"full_id", m.id.text()}, {"directory_name", fs::relative(folder, root).generic_string()},
                    {"title", m.id.text()}};
  if (!m.id.value.empty()) benchmark["value_str"] = m.id.value;
  if (m.elements) benchmark["throughput"] = {{"Elements", *m.elements}};
  for (const char* name : {"new", "base"}) {
    detail::make_folder((folder / name).string());
    write_json(folder / name / "benchmark.json", benchmark);
    write_json(folder / name / "estimates.json", numbers);
    write_json(folder / name / "tukey.json",
               scaled({f.low_severe, f.low_mild, f.high_mild, f.high_severe}, kNanoseconds));
    write_json(folder / name / "sample.json", sample);
  }
  if (!m.change) return;
  detail::make_folder((folder / "change").string());
  write_json(folder / "change" / "estimates.json",
             {{"mean", json_of(m.change->mean, 1)}, {"median", json_of(m.change->median, 1)}});
}

}  // namespace tg::bench
