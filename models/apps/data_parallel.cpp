#include <fmt/core.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/data_parallel.h>
#include <tapegrad/models/gpt/config_json.h>
#include <tapegrad/models/train/data_parallel.h>

#include <algorithm>

namespace tg::apps {
namespace {

Json json_of(const DataParallelStep& s) {
  return {{"ranks", s.ranks},
          {"micro_batches", s.micro_batches},
          {"tokens", s.tokens},
          {"forward_ms", 1e3 * s.forward},
          {"backward_ms", 1e3 * s.backward},
          {"update_ms", 1e3 * s.update},
          {"scalars_ms", 1e3 * s.scalars},
          {"parameters_ms", 1e3 * s.parameters},
          {"step_ms", 1e3 * s.seconds()},
          {"tokens_per_s", double(s.tokens) / s.seconds()},
          {"efficiency", s.alone / s.seconds()},
          {"sums",
           {{"buckets", s.buckets},
            {"all_to_all_ms", 1e3 * s.sums.all_to_all},
            {"all_gather_ms", 1e3 * s.sums.all_gather},
            {"sum_ms", 1e3 * s.sums.sum},
            {"hidden_ms", 1e3 * (s.sums.seconds() - s.exposed)},
            {"messages", 2 * s.sums.rounds * (s.ranks - 1)},
            {"message_bytes", s.sums.message}}},
          {"memory",
           {{"weights", s.memory.weights},
            {"moments", s.memory.moments},
            {"gradients", s.memory.gradients},
            {"activations", s.memory.activations},
            {"peak", s.memory.peak},
            {"buffers", int64_t(s.sums.buffers)}}}};
}
template <class M, class Visit> Json figures_of(const M& m, Visit visit) {
  Json j = {{"name", m.name}};
  visit(m, [&](const char* key, auto x) { j[key] = x; });
  return j;
}

}  // namespace

Json ranks_plan_of(const std::string& model, const RunConfig& run, const std::string& device, const RanksOptions& o) {
  const Machine m = machine(o.machine);
  const Network n = network(o.network);
  const Device where = Device::parse(device);
  Json steps = Json::array();
  DataParallelStep s;
  for (const int64_t ranks : o.ranks) {
    TrainConfig t = run.train;
    if (o.one_each) t.accumulate = ranks;
    s = data_parallel_step(run.model, t, m, n,
                           {.ranks = ranks, .bucket_bytes = 1e6 * o.bucket_mb, .rank_seconds = 1e-3 * o.rank_ms},
                           where);
    steps.push_back(json_of(s));
  }
  const TrainConfig& t = run.train;
  return {{"model", model},
          {"config", own_json(to_json(run.model))},
          {"parameters", s.memory.parameters},
          {"batch", t.batch},
          {"window", t.window_in(run.model.context)},
          {"dtype", name_of(t.dtype.value_or(DType::f32))},
          {"recompute", name_of(t.recompute)},
          {"optimizer", name_of(t.optimizer)},
          {"shard_optimizer", t.shard_optimizer},
          {"bucket_mb", o.bucket_mb},
          {"rank_ms", o.rank_ms},
          {"device", device},
          {"memory", runtime_of(where).memory(where.index)},
          {"machine", figures_of(m, [](auto& x, auto&& f) { visit_machine_fields(x, f); })},
          {"network", figures_of(n, [](auto& x, auto&& f) { visit_network_fields(x, f); })},
          {"steps", std::move(steps)}};
}

void print_ranks_plan(const Json& all) {
  const auto number = [](const Json& x) { return x.get<double>(); };
  const auto text = [](const Json& x) { return printable(x.get<std::string>()); };
  fmt::print("{}: {} parameters; steps of micro-batches of {} x {} tokens in {} by {}{}, recompute {}\n\n",
             text(all["model"]), text_of(all["parameters"]), text_of(all["batch"]), text_of(all["window"]),
             text(all["dtype"]), text(all["optimizer"]),
             all["shard_optimizer"].get<bool>() ? " with moments in parts" : "", text(all["recompute"]));
  const auto row = [&](std::string_view name, const auto& cell) {
    fmt::print("{:30}", name);
    for (const Json& s : all["steps"]) fmt::print(" {:>12}", cell(s));
    fmt::print("\n");
  };
  const auto at = [&](const Json& s, const std::string& group, const char* key) {
    return number(group.empty() ? s[key] : s[group][key]);
  };
  const auto whole = [&](std::string_view name, const std::string& group, const char* key) {
    row(name, [&](const Json& s) { return fmt::format("{:.0f}", at(s, group, key)); });
  };
  const auto decimals = [&](std::string_view name, const std::string& group, const char* key, double scale = 1) {
    row(name, [&](const Json& s) { return fmt::format("{:.2f}", scale * at(s, group, key)); });
  };
  const auto bytes = [&](std::string_view name, const std::string& group, const char* key) {
    row(name, [&](const Json& s) { return readable_bytes(int64_t(at(s, group, key))); });
  };
  whole("ranks", "", "ranks"), whole("micro-batches of a rank", "", "micro_batches"),
      whole("tokens of a step", "", "tokens");
  fmt::print("\na rank by itself, ms\n");
  decimals("  forward", "", "forward_ms"), decimals("  backward", "", "backward_ms"),
      decimals("  update", "", "update_ms");
  fmt::print("\ngradients of all ranks, added up while backward computes the next\n");
  whole("  buckets", "sums", "buckets");
  decimals("  all_to_all, ms", "sums", "all_to_all_ms"), decimals("  sums, ms", "sums", "sum_ms");
  decimals("  all_gather, ms", "sums", "all_gather_ms");
  decimals("  hidden behind backward, ms", "sums", "hidden_ms");
  whole("  messages of a rank", "sums", "messages"), bytes("  bytes of a message", "sums", "message_bytes");
  fmt::print("\nthe step\n");
  decimals("  all_gather of parameters, ms", "", "parameters_ms");
  decimals("  loss and signals, ms", "", "scalars_ms");
  decimals("  all, ms", "", "step_ms"), whole("  tokens/s", "", "tokens_per_s");
  decimals("  efficiency, %", "", "efficiency", 100);
  fmt::print("\nmemory of a rank\n");
  bytes("  weights", "memory", "weights"), bytes("  moments", "memory", "moments");
  bytes("  sums of gradients", "memory", "gradients"), bytes("  activations", "memory", "activations");
  bytes("  peak", "memory", "peak"), bytes("  beside it: parts of all ranks", "memory", "buffers");

  const Json &m = all["machine"], &n = all["network"];
  fmt::print("\n{}: {:.0f} GB/s; {:.1f} (f32), {:.1f} (bf16), {:.1f} (8 bits) TFLOP/s; {:.1f} us between ops\n",
             text(m["name"]), number(m["gb_per_s"]), number(m["f32_tflops"]), number(m["bf16_tflops"]),
             number(m["int8_tflops"]), number(m["us_per_call"]));
  fmt::print(
      "{}: {} rank(s) a node; {:.3g} us a message and {:.4g} GB/s within it, {:.3g} us and {:.4g} GB/s between nodes; "
      "{:.4g} GB/s of sums{}\n",
      text(n["name"]), text_of(n["ranks_per_node"]), number(n["us_in_node"]), number(n["gb_per_s_in_node"]),
      number(n["us_between"]), number(n["gb_per_s_between"]), number(n["gb_per_s_sum"]),
      std::ranges::count(network_names(), n["name"].get<std::string>())
          ? fmt::format("; {} of the data sheets' rates, and assumed microseconds", kShareOfDataSheet)
          : "");
  fmt::print("Computing is {}. Each rank has processors or a GPU of its own.\n",
             number(all["rank_ms"]) > 0 ? "the measured time of a rank by itself" : "the least time on that machine");
  fmt::print(
      "A rank sends its messages one after the other, N - 1 for each all_to_all and all_gather. Efficiency is\n"
      "the time of a rank by itself over that of the step.\n");
}

}  // namespace tg::apps
