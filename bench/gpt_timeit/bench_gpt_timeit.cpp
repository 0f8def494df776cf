// Document 004's profile of a GPT on this runtime, with its protocol, log and table: two runs on one model, then the
// matrix of sizes, computations, warm-up steps and precisions, each on a model of its own; and whether a warm-up step
// steadies the times, as the document says. The same code on the CPU and on CUDA, eager and compiled.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tapegrad/core/backend.h>
#include <tapegrad/core/file.h>

#include "gpt_timeit/report.h"

using namespace tg;
using namespace tg::bench;
namespace {
void log(std::string_view text) {
  fmt::print("{}", log_line(text, std::chrono::system_clock::now()));
  std::fflush(stdout);
}
TimeitRow profiled(TimeitModel& model, const TimeitRun& run, const TimeitSetup& setup) {
  log(fmt::format("Profiler config: \n{}", profiler_json(run, setup.steps)));
  TimeitRow row{run, model.profile(run.computation, run.warmup)};
  log(fmt::format("Profile result: \n{}\n\n\n", result_json(row.result)));
  return row;
}
std::unique_ptr<TimeitModel> made(const TimeitRun& run, const TimeitSetup& setup, std::string_view name) {
  log(fmt::format("Running profile for: {}", name));
  log(fmt::format("Running profile with GPT config: \n{}", model_json(timeit_config(run, setup))));
  return std::make_unique<TimeitModel>(run, setup);
}
void run_all(const TimeitPlan& plan, TimeitReport& report) {
  const TimeitSetup& setup = plan.setup;
  log(fmt::format("Device={}", report.machine.device));
  if (!plan.standalone.empty()) {
    const auto model = made(plan.standalone.front(), setup, "two runs on one model");
    for (const TimeitRun& run : plan.standalone) report.standalone.push_back(profiled(*model, run, setup));
  }
  for (const TimeitRun& run : plan.matrix) {
    empty_cache(setup.device);  // of the model before
    const auto model = made(run, setup, run.key());
    report.matrix.push_back(profiled(*model, run, setup));
  }
}
}  // namespace

int main(int argc, char** argv) try {
  int status = 0;
  const auto flags = parse_timeit_flags(argc, argv, status);
  if (!flags) return status;
  if (!flags->json.empty()) check_writable(flags->json);
  const TimeitPlan plan = timeit_plan(*flags);
  if (flags->cpu_time) use_cpu_time();
  const int64_t threads = flags->cpu_time ? 1 : flags->threads;
  if (threads != 0) set_num_threads(int(threads));
  TimeitReport report{machine(plan.setup.device),
                      flags->cpu_time ? "processor" : "wall",
                      flags->commit,
                      fmt::format("{}", fmt::join(argv, argv + argc, " ")),
                      plan.setup,
                      {},
                      {}};
  const Machine& m = report.machine;
  fmt::print("{}, {} cpu(s), {}: {}, {}; {}, each step ends synchronised{}\n", m.cpu, m.cpus, m.device, m.backend,
             m.compiler, name_of(plan.setup.mode), flags->cpu_time ? ", processor time" : "");
  run_all(plan, report);
  fmt::print("{}\n", data_frame(report.matrix, by_mean_time(report.matrix)));
  if (const auto rows = warmup_rows(report.matrix); !rows.empty()) fmt::print("{}\n", data_frame(report.matrix, rows));
  const WarmupClaim claim = warmup_claim(report.matrix);
  fmt::print("{}{}", text(claim), sums_text(report.matrix));
  if (flags->against_document) fmt::print("{}", beside_document(report));
  if (!flags->json.empty()) write_timeit_json(flags->json, report);
  return flags->check_warmup && !claim.holds() ? 1 : 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
