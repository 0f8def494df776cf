#include <tapegrad/core/backend/backend.h>

#include "gpt_timeit/timeit.h"

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
    empty_cache(setup.device);  // frees the previous model
    const auto model = made(run, setup, run.key());
    report.matrix.push_back(profiled(*model, run, setup));
  }
}
int measured(const TimeitFlags& f, int argc, char** argv) {
  const TimeitPlan plan = timeit_plan(f);
  const std::string how = fmt::format("; {}, each step ends synchronised", name_of(plan.setup.mode));
  TimeitReport report{begin(f, argc, argv, how), plan.setup, {}, {}};
  run_all(plan, report);
  fmt::print("{}\n", data_frame(report.matrix, by_mean_time(report.matrix)));
  if (const auto rows = warmup_rows(report.matrix); !rows.empty()) fmt::print("{}\n", data_frame(report.matrix, rows));
  const WarmupClaim claim = warmup_claim(report.matrix);
  fmt::print("{}{}", text(claim), sums_text(report.matrix));
  if (f.against_document) fmt::print("{}", compare_with_document(report));
  write_timeit_json(f.json, report);
  return f.check_warmup && !claim.holds() ? 1 : 0;
}
}  // namespace

int main(int argc, char** argv) {
  const auto declare = [](Command& c, TimeitFlags& f) {
    c.option("--sizes", "a list of small, medium, and tiny (a test)", f.sizes);
    declare_names(c, "--computations", "a list of forward, backward, forward_backward", f.computations);
    c.option("--warmups", "numbers of steps before the timed ones", f.warmups);
    declare_names(c, "--mixed", "a list of False and True; True: bf16 over f32 parameters", f.mixed);
    declare_name(c, "--matmul-precision", "of f32 matrix products: highest, high or medium", f.setup.matmul_precision);
    c.option("--steps", "timed ones of each run", f.setup.steps, 1, 1'000'000);
    c.option("--batch", "sequences", f.setup.batch, 1, INT32_MAX);
    c.option("--context", "tokens of each", f.setup.context, 1, INT32_MAX);
    c.option("--vocab", "token ids", f.setup.vocab, 2, INT32_MAX);  // one token: nothing to learn, no gradient
    c.option("--attn-pdrop", "rate of dropout of attention weights", f.setup.attn_pdrop);
    c.option("--resid-pdrop", "of projections, and after the activation", f.setup.resid_pdrop);
    c.option("--token-position-pdrop", "of embeddings", f.setup.token_position_pdrop);
    c.option("--d-ff", "hidden size of the MLPs, 0: 4 d_model", f.setup.d_ff, 0, INT32_MAX);
    c.toggle("--bias", "biases of Linear layers and head", f.setup.bias);
    c.toggle("--weight-tie", "the head's weight is the token table", f.setup.weight_tie);
    c.toggle("--approximate-tanh", "GELU by tanh", f.setup.tanh);
    c.option("--seed", "of weights and tokens, the same for each run", f.setup.seed);
    declare_name(c, "--mode", "eager, or compiled: each step goes through tg::compile", f.setup.mode);
    c.toggle("--matrix-only", "without the two runs on one model that come before the matrix", f.matrix_only);
    c.toggle("--check-warmup", "end with status 1 unless each run with a warm-up step varies less than the one without",
             f.check_warmup);
    c.option("--filter", "TEXT", "only runs with this in their name: small_forward_warmup", f.filter);
  };
  return run_benchmark<TimeitFlags>(
      argc, argv, "bench_gpt_timeit",
      "Document 004's profile of a GPT: forward, backward and both, with and without a warm-up "
      "step and mixed precision, a few timed steps each. Run it on a quiet machine.",
      kThreads | kCpuTime | kDocument | kQuick, declare, measured);
}
