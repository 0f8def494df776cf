// `tapegrad inspect`: prints a model or adapter folder, a safetensors file, a named model, or what its training needs.
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/apps/run_flags.h>
#include <tapegrad/models/apps/run_loop.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/models/tools/roofline.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tg::apps {
namespace {

struct InspectOptions : TrainOptions {  // uses settings, --config and --device
  std::string model, arch, adapter;
  bool json = false, plan = false, roofline = false;
  int64_t ranks = 1;
};

using Entry = std::pair<std::string, SafetensorsInfo>;  // with the name

// `config` is null for a file without one. Entries are not Json, which for a million tensors takes many times their
// file.
struct Described {
  std::string source;
  Json config;
  std::map<std::string, std::string> metadata;
  std::vector<Entry> entries;

  int64_t parameters() const {
    int64_t n = 0;
    for (const auto& [name, t] : entries) n += t.shape.product();
    return n;
  }
  size_t bytes() const {
    size_t n = 0;
    for (const auto& [name, t] : entries) n += t.bytes;
    return n;
  }
};

// A nested value of the printed JSON.
std::string json_part(const Json& x) {
  std::string all;
  for (const char c : text_of(x, 2)) {
    all += c;
    if (c == '\n') all += "  ";
  }
  return all;
}
void print_json(const Described& d) {
  fmt::print("{{\n  \"file\": {},\n  \"config\": {},\n  \"metadata\": {},\n  \"tensors\": [", text_of(Json(d.source)),
             json_part(d.config), json_part(Json(d.metadata)));
  const char* between = "";
  for (const auto& [name, t] : d.entries) {
    const std::string text = text_of(Json{{"name", name},
                                          {"dtype", name_of(t.dtype)},
                                          {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())},
                                          {"bytes", t.bytes}});
    fmt::print("{}\n    {}", std::exchange(between, ","), text);
  }
  fmt::print("{}],\n  \"parameters\": {},\n  \"bytes\": {}\n}}\n", d.entries.empty() ? "" : "\n  ", d.parameters(),
             d.bytes());
}

Described of_file(const std::string& path) {
  const bool folder = is_folder(path);
  Json config;
  if (folder) config = parse_json(model_config_text(path), "inspect", path + "/config.json", 8);
  std::vector<Entry> entries;
  const auto add = [&](const auto& files) {
    for (const std::string& name : files.names()) entries.emplace_back(name, files.info(name));
  };
  if (folder && !path_exists(path + "/model.safetensors")) {
    add(Shards(path));
    return {path, std::move(config), {}, std::move(entries)};
  }
  const SafetensorsFile file(folder ? path + "/model.safetensors" : path);
  add(file);
  return {file.path(), std::move(config), file.metadata(), std::move(entries)};
}

Described of_adapter(const std::string& folder) {
  (void)adapter_base(folder);  // an Error unless it is one
  const std::vector<std::string> files = adapter_files();
  Described d = of_file(folder + "/" + files[0]);
  const std::string config = folder + "/" + files[1];
  d.config = parse_json(MappedFile(config).text(), "inspect", config);
  return d;
}

// A table of the adapter's modules in the model, by our names.
std::string modules_over(const std::string& model, const std::string& adapter) {
  LoadedModel m = load_model(model);
  const Lora lora = load_adapter(adapter, m);
  std::string all = fmt::format("\n{:24}  {:>6} {:>6} {:>8} {:>8}  over {}\n", "module", "row", "rows", "rank", "scale",
                                printable(model));
  for (const auto& module : lora.modules()) {
    const nn::LoraDelta& delta = module.layer.delta();
    all += fmt::format("{:24}  {:>6} {:>6} {:>8} {:>8.4g}\n", module.name, module.layer.row(), delta.b.size(1),
                       delta.b.size(0), delta.scale);
  }
  return all;
}

// A folder has the settings of its training, a named model the defaults.
RunConfig planned_run(const InspectOptions& o) {
  Settings base;
  if (!o.model.empty()) {
    TG_CHECK(is_folder(o.model) || !path_exists(o.model), value,
             "[inspect] {} is a file. A plan needs the configuration in the folder of a model. Pass the folder.",
             o.model);
    const ModelFile file = read_model_file(o.model);
    check_language_model(o.model, gpt_config_from_json(file.config));
    const std::string text = file.origin ? "{\"model\":" + file.config + "}" : model_config_text(o.model);
    base.read(text, o.model + "/config.json");
  } else {
    RunConfig named;
    named.model = arch(o.arch);
    base = Settings(named);
  }
  RunConfig run = run_of(o, base.unchecked(), [&](const Difference& d) {
    TG_CHECK(o.model.empty() || !is_model_setting(d.name), value,
             "[inspect] {} is {} in {}, and {} is given. A plan is for the model in the folder. Leave it out, or give "
             "--arch in place of --model.",
             d.name, d.before, o.model, d.after);
  });
  if (run.model.vocab_size == 0) run.model.vocab_size = ByteTokenizer().vocab_size();
  check_sizes("inspect", run);
  return run;
}

// Lazy: shapes without memory, in the order of the layers.
Described of_arch(const std::string& name, const GptConfig& config) {
  LazyScope lazy;
  const Params params;
  const Gpt model(params, config);
  std::vector<Entry> entries;
  for (const Parameter& p : params.all())
    entries.push_back(
        {p.name, {.dtype = p.tensor.dtype(), .shape = p.tensor.shape(), .bytes = p.tensor.layout().bytes()}});
  return {name, Json{{"model", own_json(to_json(config))}}, {}, std::move(entries)};
}

void print_table(const Described& d) {
  fmt::print("{}: {}, {}, {}\n", printable(d.source), counted(int64_t(d.entries.size()), "tensor"),
             counted(d.parameters(), "parameter"), counted(int64_t(d.bytes()), "byte"));
  for (const auto& [key, value] : d.metadata) fmt::print("metadata {}: {}\n", printable(key), printable(value));
  if (!d.config.is_null()) fmt::print("config {}\n", printable(text_of(d.config, 2)));
  size_t width = 4;
  for (const auto& [name, t] : d.entries) width = std::max(width, printable(name).size());
  fmt::print("\n{:{}}  {:18} {:6} {:>12}\n", "name", width, "shape", "dtype", "bytes");
  for (const auto& [name, t] : d.entries)
    fmt::print("{:{}}  {:18} {:6} {:>12}\n", printable(name), width, to_string(t.shape), name_of(t.dtype), t.bytes);
}

// Settings of a step; a plan has rows for dtype and recompute.
using Names = std::set<std::string, std::less<>>;
const Names kOfStep = {"batch", "accumulate", "optimizer", "moments", "split_weights", "linear"},
            kOfRanks = {"shard_optimizer"}, kOfRoofline = {"dtype", "recompute", "window", "clip_norm"};
bool given(const InspectOptions& o, const Names& names) {
  return std::ranges::any_of(names, [&](const std::string& name) { return o.settings.contains(name); });
}

Json describe_plans(InspectOptions o) {
  o.settings["dtype"] = "bf16";  // split weights need it; rows set others
  RunConfig run = planned_run(o);
  const bool splits = run.train.split_weights;
  if (run.train.accumulate == 1 && !o.settings.contains("accumulate"))
    run.train.accumulate = o.ranks;  // one micro-batch per rank
  const auto world = o.ranks > 1 ? Communicator::hollow(int(o.ranks)) : Communicator::self();
  const Device device = Device::parse(o.device);
  Json plans = Json::array();
  MemoryPlan p;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::block}) {
      run.train.dtype = dtype, run.train.recompute = recompute;
      run.train.split_weights = splits && dtype == DType::bf16;
      p = plan_memory(run.model, run.train, device, nullptr, DType::f32, world);
      plans.push_back({{"dtype", name_of(dtype)},
                       {"recompute", name_of(recompute)},
                       {"weights", p.weights},
                       {"gradients", p.gradients},
                       {"moments", p.moments},
                       {"activations", p.activations},
                       {"peak", p.peak},
                       {"gradients_at_peak", p.gradients_at_peak}});
    }
  return {{"model", o.model.empty() ? o.arch : o.model},
          {"config", own_json(to_json(run.model))},
          {"parameters", p.parameters},
          {"batch", run.train.batch},
          {"accumulate", run.train.accumulate},
          {"ranks", o.ranks},
          {"shard_optimizer", run.train.shard_optimizer},
          {"optimizer", name_of(run.train.optimizer)},
          {"device", o.device},
          {"memory", runtime_of(device).memory(device.index)},
          {"plans", std::move(plans)}};
}

void print_plans(const Json& all) {
  const auto there = all["memory"].get<int64_t>();
  fmt::print("{}: {} parameters; a training step of {} x {} x {} tokens by {} on {}",
             printable(all["model"].get<std::string>()), text_of(all["parameters"]), text_of(all["accumulate"]),
             text_of(all["batch"]), text_of(all["config"]["context"]), all["optimizer"].get<std::string>(),
             all["device"].get<std::string>());
  if (there) fmt::print(", which has {}", readable_bytes(there));
  if (const auto ranks = all["ranks"].get<int64_t>(); ranks > 1)
    fmt::print("; memory of each of {} ranks{}", ranks, all["shard_optimizer"].get<bool>() ? ", moments sharded" : "");
  constexpr const char* kRow = "{:6}{:9} {:>9} {:>9} {:>9} {:>11} {:>9} {:>8}{}\n";
  fmt::print("\n\n");
  fmt::print(fmt::runtime(kRow), "dtype", "recompute", "weights", "gradients", "moments", "activations", "peak",
             "backward", "");
  for (const Json& p : all["plans"]) {
    const auto bytes = [&](const char* name) { return readable_bytes(p[name].get<int64_t>()); };
    fmt::print(fmt::runtime(kRow), p["dtype"].get<std::string>(), p["recompute"].get<std::string>(), bytes("weights"),
               bytes("gradients"), bytes("moments"), bytes("activations"), bytes("peak"),
               // Empty for several ranks: their gradients are sums of all or some of those of backward.
               all["ranks"].get<int64_t>() > 1
                   ? ""
                   : fmt::format("{:.0f} %", 100 * p["gradients_at_peak"].get<double>() / p["gradients"].get<double>()),
               there && p["peak"].get<int64_t>() > there ? "  too much" : "");
  }
  fmt::print(
      "\nThe columns are sizes at different moments and do not add up to the peak, the most at one time.\n"
      "`backward` is the progress of backward at the peak. 0 %: activations dominate. 100 %: gradients or the\n"
      "optimiser dominate, and a smaller batch or --recompute lowers the peak little.\n");
}

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

// `where`: a Machine, or cpu or cuda for all named machines.
Json describe_roofline(const std::string& model, const RunConfig& run, const std::string& where) {
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

int run(InspectOptions& o) {
  if (!o.adapter.empty() && (!o.arch.empty() || o.plan || o.roofline))
    throw UsageError("--adapter lists an adapter, alone or over --model. Leave the other flags out");
  if (o.adapter.empty() && o.model.empty() == o.arch.empty())
    throw UsageError(
        "inspect needs --model, a model folder or .safetensors file, --adapter, or --arch, the name of a model");
  if (o.plan && o.roofline) throw UsageError("--plan and --roofline are two tables; ask for one of them");
  const bool of_step = o.plan || o.roofline;
  if (!of_step && (o.device != "cpu" || given(o, kOfStep) || given(o, kOfRoofline)))
    throw UsageError(
        "--batch, --accumulate, --optimizer, --moments, --split-weights, --linear, --device need --plan or --roofline");
  if (!o.plan && (o.ranks > 1 || given(o, kOfRanks))) throw UsageError("--ranks and --shard-optimizer need --plan");
  if (o.plan && given(o, kOfRoofline))
    throw UsageError("--dtype, --recompute, --window and --clip-norm need --roofline");
  if (!of_step && o.arch.empty() && (!o.settings.empty() || !o.config_file.empty()))
    throw UsageError(
        "--config and settings need --plan or a named model: give --arch in place of --model, or pass --plan");
  const std::string name = o.model.empty() ? o.arch : o.model;
  if (!of_step) {
    const Described d = !o.adapter.empty() ? of_adapter(o.adapter)
                        : o.arch.empty()   ? of_file(o.model)
                                           : of_arch(o.arch, planned_run(o).model);
    const std::string modules = o.adapter.empty() || o.model.empty() ? "" : modules_over(o.model, o.adapter);
    o.json ? print_json(d) : print_table(d);
    if (!o.json) fmt::print("{}", modules);
    return 0;
  }
  const Json all = o.plan ? describe_plans(o) : describe_roofline(name, planned_run(o), o.device);
  if (o.json)
    fmt::print("{}\n", text_of(all, 2));
  else
    o.plan ? print_plans(all) : print_roofline(all);
  return 0;
}

}  // namespace

Subcommand inspect_command() {
  return subcommand<InspectOptions>(
      "inspect", "list the tensors and the configuration of a model in a folder, or of a named model", run,
      [](Command& c, InspectOptions& o) {
        c.option("--model", "PATH", "the folder of a model, or a .safetensors file", o.model);
        c.option("--adapter", "DIR", "an adapter; with --model, also the modules that it changes there", o.adapter);
        c.option("--arch", "NAME", "a named model: " + arch_names(), o.arch);
        c.toggle("--plan",
                 "print the memory that training it takes instead; of a folder, with the settings it was trained with",
                 o.plan);
        c.toggle("--roofline",
                 "print what a training step of it moves and computes instead, op by op, and the least time for it",
                 o.roofline);
        c.option("--ranks",
                 "with --plan: the memory of each process when this many train together; --accumulate defaults to "
                 "one micro-batch for each",
                 o.ranks, 1, INT32_MAX);
        c.toggle("--json", "print JSON", o.json);
        c.option(
            "--device", "NAME",
            "of --plan: cpu or cuda, whose memory is shown; of --roofline: h100, h200 or a JSON file; default: both",
            o.device);
        add_settings(c, o, [](std::string_view name) {
          return kOfStep.contains(name) || kOfRanks.contains(name) || kOfRoofline.contains(name) ||
                 is_model_setting(name);
        });
      });
}

}  // namespace tg::apps
