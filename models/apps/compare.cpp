// `tapegrad compare`: one training step on two sides (devices, dtypes, threads), tensor by tensor.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/tools/compare.h>
#include <tapegrad/models/tools/memory_plan.h>
#include <tapegrad/models/train/run_config.h>

#include <algorithm>

namespace tg::apps {
namespace {

constexpr int64_t kShown = 12;

struct CompareOptions {
  std::string model, arch, device, json;
  std::vector<std::string> sides;
  int64_t batch = 2, context = 0;
  uint64_t seed = 1;
  bool all = false;
};
using Pair = std::pair<Side, Side>;  // reference first

struct Subject {
  std::string name;
  GptConfig config;
  StateDict weights;
  int64_t parameters;
};
void check_batch_sizes(CompareOptions& o, const GptConfig& config, const std::vector<Pair>& pairs) {
  constexpr int64_t kContext = 64;
  if (o.context == 0) o.context = std::min(kContext, config.context);
  TG_CHECK(o.batch >= 1 && o.context >= 1 && o.context <= config.context, value,
           "[compare] --batch is {} and --context {}. There must be at least one sequence of 1 to {} tokens, the "
           "context of the model.",
           o.batch, o.context, config.context);
  for (const auto& [reference, other] : pairs)
    for (const Side& side : {reference, other}) {
      const TrainConfig step{.batch = o.batch, .window = o.context, .dtype = side.compute};
      const auto bytes = [&] { return plan_memory(config, step, side.device, nullptr, side.weights).peak; };
      detail::check_fits({"[compare] a step of " + to_string(side), bytes}, side.device,
                         [](int64_t) { return "Make the model, the context or the batch smaller."; });
    }
}
Subject subject_of(CompareOptions& o, const std::vector<Pair>& pairs) {
  refuse(o.model.empty() == o.arch.empty(),
         "compare needs either --model, a folder that `train` wrote, or --arch, the name of a model");
  if (!o.model.empty()) {
    const LoadedModel m = load_model(o.model);
    check_language_model(o.model, m.model.config());
    check_batch_sizes(o, m.model.config(), pairs);
    return {o.model, m.model.config(), m.params.state(), m.params.numel()};
  }
  GptConfig config = model_preset(o.arch);
  if (config.vocab_size == 0) config.vocab_size = ByteTokenizer().vocab_size();
  check_batch_sizes(o, config, pairs);
  const Params params(Device::cpu(), o.seed);
  const Gpt model(params, config);
  return {o.arch, config, params.state(), params.numel()};
}

std::vector<Pair> pairs_of(const CompareOptions& o) {
  if (!o.sides.empty()) {
    refuse(o.sides.size() != 2 || !o.device.empty(),
           "--sides takes two sides, the reference first, and replaces --device: --sides cpu/bf16 cuda/bf16");
    try {
      return {{Side::parse(o.sides[0]), Side::parse(o.sides[1])}};
    } catch (const Error& e) {
      throw UsageError(e.what());
    }
  }
  const Device device = !o.device.empty()            ? Device::parse(o.device)
                        : has_device(Device::cuda()) ? Device::cuda()
                                                     : Device::cpu();
  detail::runtime_of(device);
  if (device != Device::cpu()) return {{{}, {.device = device}}, {{.device = device}, {.device = device}}};
  std::vector<Pair> pairs = {{{.weights = DType::f64}, {}}};
  if (num_threads() > 1) pairs.push_back({{.threads = 1}, {.threads = 2}});
  return pairs;
}

Batch batch_of(const CompareOptions& o, const GptConfig& config) {
  Rng rng = Rng{o.seed}.split(1);
  const auto draw = [&](const Shape& shape) {
    std::vector<int32_t> ids(size_t(shape.product()));
    for (int32_t& id : ids) id = int32_t(rng.below(uint64_t(config.vocab_size)));
    return tensor(ids, shape);
  };
  const Tensor tokens = draw({o.batch, o.context});
  return {tokens, draw({o.batch, o.context})};
}

int run(CompareOptions& o) {
  const std::vector<Pair> pairs = pairs_of(o);
  for (const auto& [reference, other] : pairs)
    detail::runtime_of(reference.device), detail::runtime_of(other.device);  // fails before any work
  const Subject s = subject_of(o, pairs);
  if (!o.json.empty())
    check_output("compare", "--json", o.json, "report of compare",
                 [](std::string_view text) { return detail::json_or_null(text).contains("comparisons"); });
  const Batch batch = batch_of(o, s.config);
  fmt::print("{}: {} parameters; a training step of {} x {} tokens, seed {}\n", s.name, s.parameters,
             batch.inputs.size(0), batch.inputs.size(1), o.seed);
  Json report{{"model", s.name},
              {"parameters", s.parameters},
              {"batch", batch.inputs.size(0)},
              {"context", batch.inputs.size(1)},
              {"seed", o.seed},
              {"comparisons", Json::array()}};
  bool within = true;
  for (const auto& [reference, other] : pairs) {
    const Comparison c = compare(s.config, s.weights, batch, reference, other, {.seed = o.seed});
    fmt::print("\n{}", to_table(c, o.all ? -1 : kShown));
    std::fflush(stdout);
    report["comparisons"].push_back(detail::own_json(to_json(c)));
    within &= c.within();
  }
  if (!o.json.empty()) detail::write_file_atomically(o.json, detail::text_of(report, 2) + "\n");
  return within ? 0 : 1;
}
void declare(Command& c, CompareOptions& o) {
  c.option("--model", "DIR", kModelPaths, o.model);
  c.option("--arch", "NAME", "a named model with new weights: " + detail::model_preset_names(), o.arch);
  c.option("--batch", "sequences of random tokens", o.batch);
  c.option("--context", "tokens of a sequence, 0: the model's context, at most 64", o.context);
  c.option("--seed", "of tokens, dropout and new weights", o.seed);
  c.option("--device", "NAME", "cuda if available",
           "the device that is compared; cuda: f32 with the CPU, and with itself; cpu: f32 with f64, and one "
           "thread with two",
           [&o](const std::string& word) { o.device = word; });
  c.list("--sides", "SIDE",
         "two sides, the reference first: a device, optionally with a dtype, a mode (eager, lazy, compiled) "
         "and threads (cpu/f64, cuda/bf16, cpu/f32/compiled, cpu/f32/1)",
         o.sides);
  c.toggle("--all", "show all tensors, not only those nearest to their tolerance", o.all);
  c.option("--json", "FILE", "write all values to FILE; an earlier report is replaced", o.json);
}

}  // namespace

Subcommand compare_command() {
  return subcommand<CompareOptions>("compare", "compare a training step on a device with the CPU's, tensor by tensor",
                                    run, declare);
}

}  // namespace tg::apps
