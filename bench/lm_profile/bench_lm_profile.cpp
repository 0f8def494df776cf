#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/io/file.h>

#include "common/peak.h"
#include "lm_profile/steps.h"

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
int profile_all(const LmFlags& f, int argc, char** argv) {
  const LmPlan plan = lm_plan(f);
  if (!f.trace.empty()) detail::check_writable(f.trace);
  if (!f.csv.empty()) detail::make_folder(f.csv);
  LmReport report{begin(f, argc, argv), {}};
  for (const LmSetup& setup : plan.setups)
    for (const StepType type : plan.types) {
      const bool asked = &setup == &plan.setups.front();
      if (!asked && type != StepType::train) continue;
      report.runs.push_back(measured(setup, type, f.trace));
      if (asked) fmt::print("{}", tables_text(report.runs.back()));
      fmt::print("{}\n", step_text(report.runs.back()));
    }
  Peaks peaks(f.quick ? 0 : kPeakSeconds, plan.setups.front().device);
  const bool emulated = report.machine.backend.starts_with("emulated");  // an emulated GPU has no peak
  for (const LmFigures& run : report.runs)
    if (!emulated && !report.peaks.contains(run.setup.precision))
      report.peaks[run.setup.precision] = peaks.gflops(std::string(name_of(run.setup.precision)));
  fmt::print("{}{}", f.contexts.empty() ? answers(report.runs) : contexts(report.runs), utilisation(report));
  if (f.against_document) fmt::print("{}", compare_with_document(report.runs));
  for (const LmFigures& run : report.runs)
    if (!f.csv.empty()) write_csv(f.csv, run);
  write_lm_json(f.json, report);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const auto declare = [](Command& c, LmFlags& f) {
    c.option("--size", "NAME", "small, medium, large, xl, 2.7B, or tiny (a test)", f.setup.size);
    declare_names(c, "--types", "a list of forward, backward, train", f.types);
    declare_name(c, "--form", "document: op by op; flash: with attention in blocks; fused: Gpt", f.setup.form);
    declare_name(c, "--precision", "of GEMMs: f32, tf32 (on a GPU), bf16 (form fused)", f.setup.precision);
    c.option("--batch", "sequences", f.setup.batch, 1, INT32_MAX);
    c.option("--context", "tokens of each; the last has no target", f.context, 2, INT32_MAX);
    c.option("--contexts", "train steps of each form over these, such as 128,256: the share of attention", f.contexts);
    c.option("--vocab", "token ids", f.vocab, 2, INT32_MAX);
    c.option("--layers", "0: those of the size", f.layers, 0, 1 << 14);
    c.option("--warmup", "steps before the profiled one", f.setup.warmup, 0, 1'000'000);
    c.option("--seed", "of weights and tokens", f.setup.seed);
    c.toggle("--answers", "profile the other forms and precisions too, and answer the document's nine conclusions",
             f.answers);
    c.option("--csv", "FOLDER", "write each table of each run to a file in this folder", f.csv);
    c.option("--trace", "FILE", "write the last profile to this file, for Perfetto", f.trace);
  };
  return run_benchmark<LmFlags>(argc, argv, "bench_lm_profile",
                                "Document 003's profiles of a language model: steps to warm up, then one whose parts "
                                "are timed, in tables as nsys prints them.",
                                kThreads | kDocument | kQuick, declare, profile_all);
}
