// Times `tapegrad train`'s steps (forward, backward, clipping, optimiser) for a named model on random tokens, without
// files. CPU and CUDA, eager and compiled.
#include <fmt/format.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/lora.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/models/train/trainer.h>

#include <algorithm>
#include <optional>
#include <set>

#include "common/harness.h"
#include "common/program.h"

using namespace tg;
using namespace tg::bench;
namespace {
struct StepFlags : SharedFlags {
  std::string arch = "nano";
  RunMode mode = RunMode::eager;
  std::vector<std::pair<std::string, std::string>> settings;
  int64_t steps = 20, untimed = 4, lora_rank = 0;
};
// Not flags: set by --mode, or for whole runs: end, validation, files, text.
const std::set<std::string_view> kOfRuns{
    "compile",      "max_steps", "warmup",    "schedule",        "min_lr", "eval_every", "checkpoint_every",
    "val_fraction", "order",     "tokenizer", "shard_optimizer", "hold",   "cooldown"};

RunConfig run_of(const StepFlags& f) {
  RunConfig base = detail::named_run(f.arch);
  if (base.model.vocab_size == 0) base.model.vocab_size = 256;  // nano takes its tokenizer's size; here, bytes
  TrainConfig& t = base.train;
  t.max_steps = f.untimed + f.steps, t.warmup = 0, t.schedule = ScheduleKind::constant, t.min_lr = 0;
  t.eval_every = 0, t.val_fraction = 0;
  t.compile = f.mode == RunMode::compiled;
  Settings settings(base);
  for (const auto& [name, word] : f.settings) settings.set(name, word);
  return settings.run();
}
// With --lora-rank the frozen weights are stored in the dtype of the computation.
DType dtype_of_weights(const RunConfig& run, const StepFlags& f) {
  return f.lora_rank ? run.train.dtype.value_or(DType::f32) : DType::f32;
}
LoraConfig adapters_of(const StepFlags& f) {
  return {.targets = {"h.*"}, .rank = f.lora_rank, .alpha = 2.0 * double(f.lora_rank)};
}
void check_memory(const RunConfig& run, const StepFlags& f, Device device) {
  const auto bytes = [=](int64_t batch) {
    TrainConfig t = run.train;
    t.batch = batch;
    const LoraConfig adapters = adapters_of(f);
    return plan_memory(run.model, t, device, f.lora_rank ? &adapters : nullptr, dtype_of_weights(run, f)).peak;
  };
  check_fits(fmt::format("[bench_step] a step of {}", f.arch), run.train.batch, bytes, {}, device);
}
TokenData random_tokens(const RunConfig& run) {
  const int64_t windows = run.train.batch * run.train.window_in(run.model.context);
  std::vector<int64_t> ids(size_t(std::max<int64_t>(100'000, 2 * windows)));
  Rng rng{run.train.seed};
  for (int64_t& id : ids) id = int64_t(rng.below(uint64_t(run.model.vocab_size)));
  return TokenData::from_tokens(ids);
}
Json json_of(const CompileStats* c) {
  if (!c) return nullptr;
  return {{"traces", c->traces},
          {"replays", c->replays},
          {"ops", c->ops},
          {"plan_bytes", c->bytes},
          {"graph_launches", c->graph_launches},
          {"recorded_ops", c->recorded_ops},
          {"why_no_graph", c->why_no_graph}};
}
std::string text_of(const CompileStats* c, Device device) {
  if (!c) return "eager";
  if (c->graph_launches > 0)
    return fmt::format("compiled, {} launches of a graph, {} ops recorded", c->graph_launches, c->recorded_ops);
  return device == Device::cpu() ? "compiled" : fmt::format("compiled, no graph: {}", c->why_no_graph);
}

int measured(const StepFlags& flags, int argc, char** argv) {
  StepFlags f = flags;
  if (f.quick) {
    f.untimed = 2, f.steps = 3;
    f.settings.insert(f.settings.end(),
                      {{"layers", "1"}, {"width", "32"}, {"heads", "2"}, {"context", "16"}, {"batch", "2"}});
  }
  const RunConfig run = run_of(f);
  const Origin origin = begin(f, argc, argv, "; each step ends synchronised");
  const Device device = Device::parse(f.device);
  check_memory(run, f, device);
  const Params params(device, run.train.seed, dtype_of_weights(run, f));
  Gpt model(params, run.model);
  const Params trained = f.lora_rank ? apply_lora(model, params, adapters_of(f)).params() : params;
  Trainer trainer(model, trained, random_tokens(run), run.train);
  std::vector<double> seconds;
  StepRecord last;
  const CompileStats* const compiled = trainer.compiled();
  std::optional<Recordings> recordings;
  while (!trainer.done()) {
    last = trainer.step();
    if (compiled && last.step == std::max<int64_t>(f.untimed, 4)) recordings.emplace(*compiled);
    if (last.step > f.untimed) seconds.push_back(1e-3 * last.ms);
  }
  const Timing t = summary(seconds);
  const int64_t window = run.train.window_in(run.model.context);
  const double tokens = double(run.train.accumulate * run.train.batch * window);
  fmt::print(
      "{}, {} parameters, {} x {} x {} tokens, {}: median {:.2f} ms of {} steps (p10 {:.2f}, p90 {:.2f}), {:.0f} "
      "tokens/s, loss {:.4f}, peak {}\n",
      f.arch, params.numel(), run.train.accumulate, run.train.batch, window, text_of(compiled, device), 1e3 * t.median,
      t.runs, 1e3 * t.p10, 1e3 * t.p90, tokens / t.median, last.loss, detail::readable_bytes(last.peak_bytes));
  if (!f.json.empty()) {
    Json j = json_of(origin);
    j["arch"] = f.arch;
    j["run"] = detail::own_json(to_json(run));
    j["parameters"] = params.numel(), j["trained"] = trained.numel();
    j["seconds"] = seconds;
    j["median"] = t.median, j["p10"] = t.p10, j["p90"] = t.p90;
    j["tokens_per_s"] = tokens / t.median;
    j["loss"] = last.loss;
    j["peak_bytes"] = last.peak_bytes;
    j["compiled"] = json_of(compiled);
    write_json(f.json, j);
  }
  if (recordings) recordings->check(*compiled);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const auto declare = [](Command& c, StepFlags& f) {
    c.option("--arch", "NAME",
             "a named model or run: " + detail::model_preset_names() + ", " + detail::run_preset_names(), f.arch);
    declare_name(c, "--mode", "eager, or compiled: each step is one compiled function", f.mode);
    c.option("--steps", "timed ones", f.steps, 1, 1'000'000);
    c.option("--untimed", "steps before them", f.untimed, 0, 1'000'000);
    c.option("--lora-rank",
             "train adapters of this rank on all Linear layers of the blocks, over weights in --dtype; 0: train all",
             f.lora_rank, 0, 4096);
    for (const RunField& field : detail::run_fields()) {
      if (kOfRuns.contains(field.name) || detail::is_data_setting(field.name)) continue;
      std::string flag = "--" + field.name;
      std::replace(flag.begin(), flag.end(), '_', '-');
      c.option(flag, field.kind, field.value, field.help,
               [&f, name = field.name](const std::string& word) { f.settings.emplace_back(name, word); });
    }
  };
  return run_benchmark<StepFlags>(argc, argv, "bench_step",
                                  "Times whole training steps of a named model on random tokens, as `tapegrad train` "
                                  "makes them, without its files. Settings have its flags.",
                                  kThreads | kQuick, declare, measured);
}
