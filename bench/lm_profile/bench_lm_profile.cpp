// Document 003's profiles of a language model on this runtime: three steps to warm up and one profiled, of the model
// forward, of gradients that add up, and of training; tables as nsys prints them; and answers to the document's nine
// conclusions, out of the same step in other forms and precisions. The same code on the CPU and on CUDA.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tapegrad/core/backend.h>
#include <tapegrad/core/file.h>

#include "common/peak.h"
#include "lm_profile/flops.h"

using namespace tg;
using namespace tg::bench;
namespace {
constexpr double kPeakSeconds = 0.3;
LmFigures measured(const LmSetup& setup, StepType type, const std::string& trace) {
  fmt::print("{}", preamble(setup, type));
  std::fflush(stdout);
  const LmRun run = profiled(setup, type);
  empty_cache(setup.device);
  fmt::print("\nRunning profiled step 1/1...\n\nProfiling complete.\n");
  if (!trace.empty()) write_trace(run.profile, trace);
  return figures_of(run);
}
}  // namespace

int main(int argc, char** argv) try {
  int status = 0;
  const auto flags = parse_lm_flags(argc, argv, status);
  if (!flags) return status;
  const LmPlan plan = lm_plan(*flags);
  if (flags->threads != 0) set_num_threads(int(flags->threads));
  for (const std::string& path : {flags->trace, flags->json})
    if (!path.empty()) check_writable(path);
  if (!flags->csv.empty()) make_folder(flags->csv);
  LmReport report{
      machine(plan.setups.front().device), flags->commit, fmt::format("{}", fmt::join(argv, argv + argc, " ")), {}};
  const Machine& m = report.machine;
  fmt::print("{}, {} cpu(s), {}: {}, {}\n", m.cpu, m.cpus, m.device, m.backend, m.compiler);
  for (const LmSetup& setup : plan.setups)
    for (const StepType type : plan.types) {
      const bool asked = &setup == &plan.setups.front();
      if (!asked && type != StepType::train) continue;
      report.runs.push_back(measured(setup, type, flags->trace));
      if (asked) fmt::print("{}", tables_text(report.runs.back()));
      fmt::print("{}\n", step_text(report.runs.back()));
    }
  Peaks peaks(kPeakSeconds, plan.setups.front().device);
  const bool emulated = m.backend.starts_with("emulated");  // such a GPU has no peak
  for (const LmFigures& f : report.runs)
    if (!emulated && !report.peaks.contains(f.setup.precision))
      report.peaks[f.setup.precision] = peaks.gflops(std::string(name_of(f.setup.precision)));
  fmt::print("{}{}", answers(report.runs), utilisation(report));
  if (flags->against_document) fmt::print("{}", beside_document(report.runs));
  for (const LmFigures& f : report.runs)
    if (!flags->csv.empty()) write_csv(flags->csv, f);
  if (!flags->json.empty()) write_lm_json(flags->json, report);
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
