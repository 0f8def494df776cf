#include <fmt/core.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/roofline.h>
#include <tapegrad/models/gpt/gpt.h>

#include <algorithm>

namespace tg::apps {
namespace {

// "linear bf16", "cast f32 to bf16"
std::string name_of_row(const WorkOfOp& o) {
  return o.from == o.to ? fmt::format("{} {}", o.op, o.from) : fmt::format("{} {} to {}", o.op, o.from, o.to);
}
std::vector<Machine> machines_at(const std::string& where) {
  std::vector<Machine> list;
  if (where != "cpu" && !where.starts_with("cuda")) return {machine(where)};
  for (const std::string_view name : machine_names()) list.push_back(machine(std::string(name)));
  return list;
}

}  // namespace

Json roofline_of(const std::string& model, const RunConfig& run, const std::string& where) {
  const std::vector<Machine> machines = machines_at(where);
  const StepWork work = step_work(run.model, run.train);
  std::vector<WorkOfOp> ops = work.all();
  std::ranges::stable_sort(ops, std::greater<>(), [&](const WorkOfOp& o) { return floor_seconds(o, machines[0]); });
  Json rows = Json::array(), of_machines = Json::array();
  for (const WorkOfOp& o : ops) {
    Json floors = Json::array();
    for (const Machine& m : machines) floors.push_back(1e3 * floor_seconds(o, m));
    rows.push_back({{"op", name_of_row(o)},
                    {"calls", o.calls},
                    {"read", o.work.read},
                    {"written", o.work.written},
                    {"flops", 2 * o.work.multiply_adds},
                    {"floor_ms", std::move(floors)}});
  }
  for (const Machine& m : machines) {
    Json of = {{"name", m.name},
               {"step_ms", 1e3 * floor_seconds(ops, m)},
               {"forward_ms", 1e3 * floor_seconds(work.forward, m)},
               {"backward_ms", 1e3 * floor_seconds(work.backward, m)},
               {"update_ms", 1e3 * floor_seconds(work.update, m)}};
    visit_machine_fields(m, [&](const char* key, double x) { of[key] = x; });
    of_machines.push_back(std::move(of));
  }
  const TrainConfig& t = run.train;
  return {{"model", model},
          {"config", own_json(to_json(run.model))},
          {"batch", t.batch},
          {"accumulate", t.accumulate},
          {"window", t.window_in(run.model.context)},
          {"dtype", name_of(t.dtype.value_or(DType::f32))},
          {"recompute", name_of(t.recompute)},
          {"optimizer", name_of(t.optimizer)},
          {"parameters", plan_memory(run.model, t).parameters},
          {"machines", std::move(of_machines)},
          {"ops", std::move(rows)}};
}

void print_roofline(const Json& all) {
  const auto number = [](const Json& x) { return x.get<double>(); };
  const auto text = [](const Json& x) { return x.get<std::string>(); };
  size_t width = 2;
  for (const Json& row : all["ops"]) width = std::max(width, text(row["op"]).size());
  double calls = 0, read = 0, written = 0, flops = 0;
  std::string head, sums;
  for (const Json& m : all["machines"]) {
    head += fmt::format(" {:>9}", printable(text(m["name"])) + " ms");
    sums += fmt::format(" {:9.3f}", number(m["step_ms"]));
  }
  fmt::print("{}: a training step of {} x {} x {} tokens in {} by {}, recompute {}\n\n", printable(text(all["model"])),
             text_of(all["accumulate"]), text_of(all["batch"]), text_of(all["window"]), text(all["dtype"]),
             text(all["optimizer"]), text(all["recompute"]));
  fmt::print("{:{}} {:>7} {:>11} {:>11} {:>11}{}\n", "op", width, "calls", "read MB", "written MB", "GFLOP", head);
  for (const Json& row : all["ops"]) {
    std::string floors;
    for (const Json& ms : row["floor_ms"]) floors += fmt::format(" {:9.3f}", number(ms));
    calls += number(row["calls"]), read += number(row["read"]), written += number(row["written"]);
    flops += number(row["flops"]);
    fmt::print("{:{}} {:>7} {:11.3f} {:11.3f} {:11.3f}{}\n", text(row["op"]), width, text_of(row["calls"]),
               number(row["read"]) / 1e6, number(row["written"]) / 1e6, number(row["flops"]) / 1e9, floors);
  }
  fmt::print("{:{}} {:7.0f} {:11.3f} {:11.3f} {:11.3f}{}\n", "all", width, calls, read / 1e6, written / 1e6,
             flops / 1e9, sums);
  const double layers = number(all["config"]["layers"]), parameters = number(all["parameters"]);
  fmt::print(
      "\n{:.1f} bytes a parameter, {:.1f} calls a layer. Bytes of inputs and outputs count once for each op,\n"
      "FLOPs without masked positions. The times are lower bounds: for bytes or FLOPs, whichever take longer,\n"
      "plus the time between two ops.\n",
      (read + written) / parameters, calls / layers);
  for (const Json& m : all["machines"])
    fmt::print("{}: {:.0f} GB/s; {:.1f} (f32), {:.1f} (bf16), {:.1f} (8 bits) TFLOP/s; {:.1f} us between ops\n",
               printable(text(m["name"])), number(m["gb_per_s"]), number(m["f32_tflops"]), number(m["bf16_tflops"]),
               number(m["int8_tflops"]), number(m["us_per_call"]));
}

}  // namespace tg::apps
