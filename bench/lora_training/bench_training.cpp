#include "common/peak.h"
#include "lora_training/rows.h"

#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/profile/work.h>

#include <algorithm>

using namespace tg;
using namespace tg::bench;
namespace {
struct TrainingFlags : SharedFlags {
  std::string baseline;
  RunMode mode = RunMode::eager;
  double warmup = 3, target = 5;  // seconds
  int64_t samples = 100;
};

std::vector<TrainingRow> wanted_rows(const TrainingFlags& flags, Device device) {
  std::vector<TrainingRow> rows = training_rows();
  if (device == Device::cpu()) std::ranges::move(lazy_rows(), std::back_inserter(rows));
  std::erase_if(rows, [&](const TrainingRow& r) { return r.id.text().find(flags.filter) == std::string::npos; });
  TG_CHECK(!rows.empty(), value, "[bench_training] no id has '{}' in it. Without --filter all are listed.",
           flags.filter);
  for (TrainingRow& r : rows) {
    if (r.samples) r.samples = std::min(*r.samples, int(flags.samples));
    if (flags.quick) r.samples = 2;  // the minimum with a variance
  }
  return rows;
}
CriterionOptions options(const TrainingFlags& flags) {
  const std::string& folder = flags.baseline;
  if (flags.quick) return {.warmup = 0, .target = 1e-9, .samples = 2, .folder = folder};
  return {.warmup = flags.warmup, .target = flags.target, .samples = int(flags.samples), .folder = folder};
}
bool trains(const TrainingRow& r) {
  return std::set<std::string>{"gradient_computation", "optimizer_step", "full_training_step"}.contains(r.id.group);
}
// The least seconds of a run: each op's bytes or FLOPs, whichever take longer, by the rates of all threads.
double limit(const Benchmark& b, Peaks& peaks) {
  const WorkScope counting;
  b.run();
  double seconds = 0;
  for (const WorkOfOp& op : counting.ops()) {
    const auto bytes = double(op.work.read + op.work.written);
    const Bandwidth rates = peaks.bandwidth(bytes / double(op.calls));
    const double moved = bytes / std::max({rates.best(), rates.update, rates.read});
    seconds += 1e-9 * std::max(moved, 2 * op.work.multiply_adds / peaks.gflops("f32"));
  }
  return seconds;
}
void measure_all(const TrainingFlags& flags, Device device, TrainingReport& report) {
  const std::vector<TrainingRow> rows = wanted_rows(flags, device);
  if (std::ranges::any_of(rows, trains)) check_training(flags.mode, device);
  Peaks peaks(0.1, device);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Benchmark b = benchmark(rows[i], flags.mode, device);
    report.rows.push_back(measured(b, options(flags)));
    if (flags.against_document && !flags.quick) report.rows.back().limit = limit(b, peaks);
    if (i + 1 == rows.size() || rows[i + 1].id.group != rows[i].id.group) fmt::print("\n");
  }
}
int run(const TrainingFlags& f, int argc, char** argv) {
  TrainingReport report{
      begin(f, argc, argv, fmt::format("; {}, each sample ends synchronised", name_of(f.mode))), f.mode, {}};
  fmt::print("\n");
  measure_all(f, Device::parse(f.device), report);
  if (f.against_document) fmt::print("{}", compare_with_document(report.rows));
  write_training_json(f.json, report);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const auto declare = [](Command& c, TrainingFlags& f) {
    declare_name(c, "--mode", "eager, or compiled: functions of tensors go through tg::compile", f.mode);
    c.option("--baseline", "FOLDER",
             "compare with the run before, kept in this folder, and keep this one there; one folder for each mode",
             f.baseline);
    c.option("--warmup", "seconds, for each id", f.warmup, 0, 60);
    c.option("--target", "seconds, for all samples of an id", f.target, 0.001, 600);
    c.option("--samples", "of each id; complete_iteration takes 10 at most", f.samples, 2, 10'000);
    c.option("--filter", "TEXT", "only ids with this in them: lora_forward, rank_8", f.filter);
  };
  return run_benchmark<TrainingFlags>(argc, argv, "bench_training",
                                      "Measures document 000's benchmarks, LoRA layers and their training, as "
                                      "Criterion.rs does. Run it on a quiet machine.",
                                      kCpuTime | kDocument | kQuick, declare, run);
}
