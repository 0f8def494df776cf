// Document 000's benchmarks on this runtime, with Criterion.rs' protocol, statistics and text; small graphs, eager and
// lazy, on the CPU; and what the host adds to a training step. Every sample ends when the device is done. Before
// anything that trains is measured, it is shown to train.
#include "common/flags.h"
#include "lora_training/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tapegrad/core/backend.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/file.h>

#include <algorithm>

using namespace tg;
using namespace tg::bench;
namespace {
constexpr const char* kStep = "full_training_step/complete_iteration";

std::vector<TrainingRow> wanted_rows(const TrainingFlags& flags, Device device) {
  std::vector<TrainingRow> rows = training_rows();
  if (device == Device::cpu()) std::ranges::move(lazy_rows(), std::back_inserter(rows));
  std::erase_if(rows, [&](const TrainingRow& r) { return r.id.text().find(flags.filter) == std::string::npos; });
  TG_CHECK(!rows.empty(), value, "[bench_training] no id has '{}' in it. Without --filter all are listed.",
           flags.filter);
  for (TrainingRow& r : rows) {
    if (r.samples) r.samples = std::min(*r.samples, flags.samples);
    if (flags.quick) r.samples = 2;  // the fewest that have a variance
  }
  return rows;
}
CriterionOptions options(const TrainingFlags& flags) {
  const std::string& folder = flags.baseline;
  if (flags.quick) return {.warmup = 0, .target = 1e-9, .samples = 2, .folder = folder};
  return {.warmup = flags.warmup, .target = flags.target, .samples = flags.samples, .folder = folder};
}
bool trains(const TrainingRow& r) {
  for (const char* group : {"gradient_computation", "optimizer_step", "full_training_step"})
    if (r.id.group == group) return true;
  return false;
}
HostTimeOptions host_options(const TrainingFlags& flags) {
  if (flags.quick) return {.ops = 100, .rounds = 1, .seconds = 0};
  return {.seconds = std::min(1.0, flags.target)};
}
void measure_all(const TrainingFlags& flags, Device device, TrainingReport& report) {
  const RunMode mode = flags.mode == "eager" ? RunMode::eager : RunMode::compiled;
  const std::vector<TrainingRow> rows = wanted_rows(flags, device);
  if (std::ranges::any_of(rows, trains)) check_training(mode, device);
  Criterion criterion(options(flags));
  for (size_t i = 0; i < rows.size(); ++i) {
    criterion.run(benchmark(rows[i], mode, device));
    if (rows[i].id.text() == kStep) {
      const HostTimeOptions o = host_options(flags);
      report.host = host_time(device, o);
      fmt::print("{}", text(*report.host, o));
    }
    if (i + 1 == rows.size() || rows[i + 1].id.group != rows[i].id.group) criterion.end_group();
  }
  report.rows = criterion.results();
}
}  // namespace

int main(int argc, char** argv) try {
  int status = 0;
  const auto flags = parse_training_flags(argc, argv, status);
  if (!flags) return status;
  if (!flags->json.empty()) check_writable(flags->json);
  if (flags->cpu_time) set_num_threads(1), use_cpu_time();
  const Device device = Device::parse(flags->device);
  TrainingReport report{machine(device),
                        flags->mode,
                        flags->cpu_time ? "processor" : "wall",
                        flags->commit,
                        fmt::format("{}", fmt::join(argv, argv + argc, " ")),
                        {},
                        {}};
  const Machine& m = report.machine;
  fmt::print("{}, {} cpu(s), {}: {}, {}; {}, each sample ends synchronised{}\n\n", m.cpu, m.cpus, m.device, m.backend,
             m.compiler, flags->mode, flags->cpu_time ? ", processor time" : "");
  measure_all(*flags, device, report);
  if (flags->against_document) fmt::print("{}", beside_document(report.rows));
  if (!flags->json.empty()) write_training_json(flags->json, report);
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
