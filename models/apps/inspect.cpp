// `tapegrad inspect`: prints a model or adapter folder, a safetensors file, a named model, or what its training needs.
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/gguf.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/apps/run.h>
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

struct InspectOptions : TrainOptions {
  std::string model, arch, adapter;
  LoraFlags lora;
  bool json = false, plan = false, roofline = false;
  int64_t ranks = 1;
  const std::string& source() const { return model.empty() ? arch : model; }
};

// `config` is null for a file without one. Entries are not Json, which takes far more memory.
struct Described {
  std::string source;
  Json config = {};
  std::map<std::string, std::string> metadata = {};
  struct Entry {
    std::string name;
    std::string_view type;
    Shape shape;
    size_t bytes;
  };
  std::vector<Entry> entries = {};
  int64_t parameters = 0;
  size_t bytes = 0;
  void add(Entry t) {
    parameters += t.shape.product(), bytes += t.bytes;
    entries.push_back(std::move(t));
  }
};

void print_json(const Described& d) {
  const std::string head = detail::text_of(Json{{"file", d.source}, {"config", d.config}, {"metadata", d.metadata}}, 2);
  fmt::print("{},\n  \"tensors\": [", head.substr(0, head.rfind('\n')));
  const char* between = "";
  for (const Described::Entry& t : d.entries) {
    const std::string text = detail::text_of(Json{{"name", t.name},
                                                  {"dtype", t.type},
                                                  {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())},
                                                  {"bytes", t.bytes}});
    fmt::print("{}\n    {}", std::exchange(between, ","), text);
  }
  fmt::print("{}],\n  \"parameters\": {},\n  \"bytes\": {}\n}}\n", d.entries.empty() ? "" : "\n  ", d.parameters,
             d.bytes);
}

Described of_file(const std::string& path) {
  const bool folder = detail::is_folder(path);
  Described d{.source = path};
  if (detail::is_gguf(path)) {
    const detail::GgufFile file(path);
    for (const auto& [name, t] : file.tensors()) d.add({name, t.type(), t.shape, t.bytes});
    for (const auto& [key, x] : file.values())
      d.metadata[key] = x.is_array()    ? fmt::format("{} elements", x.size())
                        : x.is_string() ? x.text()
                                        : detail::text_of(x);
    return d;
  }
  if (folder) d.config = detail::parse_json(detail::model_config_text(path), "inspect", path + "/config.json", 8);
  const auto add = [&](const auto& files) {
    for (const std::string& name : files.names()) {
      const SafetensorsInfo& t = files.info(name);
      d.add({name, name_of(t.dtype), t.shape, t.bytes});
    }
  };
  if (folder && !detail::path_exists(path + "/model.safetensors")) {
    add(Shards(path));
    return d;
  }
  const SafetensorsFile file(folder ? path + "/model.safetensors" : path);
  add(file);
  d.source = file.path(), d.metadata = file.metadata();
  return d;
}

Described of_adapter(const std::string& folder) {
  (void)detail::adapter_base(folder);  // an Error otherwise
  const std::vector<std::string> files = detail::adapter_files();
  Described d = of_file(folder + "/" + files[0]);
  const std::string config = folder + "/" + files[1];
  d.config = detail::parse_json(MappedFile(config).text(), "inspect", config);
  return d;
}

// A table of the adapter's modules by our names.
std::string modules_over(const std::string& model, const std::string& adapter) {
  LoadedModel m = load_model(model, {}, DType::f32, detail::adapter_base(adapter).nf4 ? Blocks::nf4 : Blocks::file);
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

// A folder has its training's settings, a named model the defaults.
RunConfig planned_run(const InspectOptions& o) {
  Settings base;
  if (!o.model.empty()) {
    TG_CHECK(detail::is_folder(o.model) || !detail::path_exists(o.model) || detail::is_gguf(o.model), value,
             "[inspect] {} is a file. A plan needs the configuration in the folder of a model. Pass the folder.",
             o.model);
    const ModelFile file = detail::read_model_file(o.model);
    check_language_model(o.model, detail::gpt_config_from_json(file.config));
    const std::string text = file.origin ? "{\"model\":" + file.config + "}" : detail::model_config_text(o.model);
    base.read(text, o.model + "/config.json");
  } else {
    base = Settings(detail::named_run(o.arch));
  }
  RunConfig run = run_of(o, base.unchecked(), [&](const Difference& d) {
    TG_CHECK(o.model.empty() || !detail::is_model_setting(d.name), value,
             "[inspect] {} is {} in {}, and {} is given. A plan is for the model in the folder. Leave it out, or give "
             "--arch in place of --model.",
             d.name, d.before, o.model, d.after);
  });
  if (run.model.vocab_size == 0) run.model.vocab_size = ByteTokenizer().vocab_size();
  check_sizes("inspect", run);
  return run;
}

// Lazy: shapes without memory, in layer order.
Described of_arch(const std::string& name, const GptConfig& config) {
  LazyScope lazy;
  const Params params;
  const Gpt model(params, config);
  Described d{.source = name, .config = Json{{"model", detail::own_json(to_json(config))}}};
  for (const Parameter& p : params.all())
    d.add({p.name, name_of(p.tensor.dtype()), p.tensor.shape(), p.tensor.layout().bytes()});
  return d;
}

void print_table(const Described& d) {
  fmt::print("{}: {}, {}, {}\n", printable(d.source), detail::counted(int64_t(d.entries.size()), "tensor"),
             detail::counted(d.parameters, "parameter"), detail::counted(int64_t(d.bytes), "byte"));
  for (const auto& [key, value] : d.metadata) fmt::print("metadata {}: {}\n", printable(key), printable(value));
  if (!d.config.is_null()) fmt::print("config {}\n", printable(detail::text_of(d.config, 2)));
  size_t width = 4;
  for (const Described::Entry& t : d.entries) width = std::max(width, printable(t.name).size());
  fmt::print("\n{:{}}  {:18} {:6} {:>12}\n", "name", width, "shape", "dtype", "bytes");
  for (const Described::Entry& t : d.entries)
    fmt::print("{:{}}  {:18} {:6} {:>12}\n", printable(t.name), width, to_string(t.shape), t.type, t.bytes);
}

using Names = std::set<std::string, std::less<>>;
const Names kOfStep = {"batch", "accumulate", "optimizer", "moments", "split_weights", "linear", "window"},
            kOfRanks = {"shard_optimizer"}, kOfRoofline = {"dtype", "recompute", "clip_norm"};
bool given(const InspectOptions& o, const Names& names) {
  return std::ranges::any_of(names, [&](const std::string& name) { return o.settings.contains(name); });
}

struct PlanRow {
  DType dtype;
  Recompute recompute;
  MemoryPlan plan;
};
struct Plans {
  RunConfig run;
  std::vector<PlanRow> rows;
  int64_t memory;  // bytes of the device
};

std::function<TensorSource()> base_of(const InspectOptions& o) {
  if (o.model.empty()) return {};
  return weights_in_blocks(o.model, o.lora.base(), o.lora.blocks());
}

Plans plans_of(InspectOptions o) {
  o.settings["dtype"] = "bf16";  // split weights need it
  const Device device = Device::parse(o.device);
  Plans all{planned_run(o), {}, int64_t(detail::runtime_of(device).memory(device.index))};
  TrainConfig& t = all.run.train;
  if (t.accumulate == 1 && !o.settings.contains("accumulate")) t.accumulate = o.ranks;  // one micro-batch per rank
  const auto world = o.ranks > 1 ? Communicator::fake(int(o.ranks)) : Communicator::self();
  const LoraConfig lora = o.lora.config();
  const auto base = base_of(o);
  const bool adapters = o.lora.given() || base;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::block}) {
      TrainConfig row = t;
      row.dtype = dtype, row.recompute = recompute, row.split_weights &= dtype == DType::bf16;
      if (dtype == DType::bf16 || o.lora.base() == DType::f32)
        all.rows.push_back(
            {dtype, recompute,
             plan_memory(all.run.model, row, device, adapters ? &lora : nullptr, o.lora.base(), world, base)});
    }
  return all;
}

Json json_of(const InspectOptions& o, const Plans& all) {
  Json rows = Json::array();
  for (const auto& [dtype, recompute, p] : all.rows)
    rows.push_back({{"dtype", name_of(dtype)},
                    {"recompute", name_of(recompute)},
                    {"weights", p.weights},
                    {"gradients", p.gradients},
                    {"moments", p.moments},
                    {"activations", p.activations},
                    {"peak", p.peak},
                    {"gradients_at_peak", p.gradients_at_peak}});
  const TrainConfig& t = all.run.train;
  return {{"model", o.source()},
          {"config", detail::own_json(to_json(all.run.model))},
          {"parameters", all.rows[0].plan.parameters},
          {"batch", t.batch},
          {"accumulate", t.accumulate},
          {"window", t.window_in(all.run.model.context)},
          {"ranks", o.ranks},
          {"shard_optimizer", t.shard_optimizer},
          {"optimizer", name_of(t.optimizer)},
          {"device", o.device},
          {"memory", all.memory},
          {"plans", std::move(rows)}};
}

void print(const InspectOptions& o, const Plans& all) {
  const TrainConfig& t = all.run.train;
  fmt::print("{}: {} parameters; a training step of {} x {} x {} tokens by {} on {}", printable(o.source()),
             all.rows[0].plan.parameters, t.accumulate, t.batch, t.window_in(all.run.model.context),
             name_of(t.optimizer), o.device);
  if (all.memory) fmt::print(", which has {}", detail::readable_bytes(all.memory));
  if (o.ranks > 1) fmt::print("; memory of each of {} ranks{}", o.ranks, t.shard_optimizer ? ", moments sharded" : "");
  fmt::print("\n\n{:6}{:9} {:>9} {:>9} {:>9} {:>11} {:>9} {:>8}\n", "dtype", "recompute", "weights", "gradients",
             "moments", "activations", "peak", "backward");
  for (const auto& [dtype, recompute, p] : all.rows)
    fmt::print("{:6}{:9} {:>9} {:>9} {:>9} {:>11} {:>9} {:>8}{}\n", name_of(dtype), name_of(recompute),
               detail::readable_bytes(p.weights), detail::readable_bytes(p.gradients),
               detail::readable_bytes(p.moments), detail::readable_bytes(p.activations), detail::readable_bytes(p.peak),
               // Empty for several ranks, whose gradients are partial or full sums of those in backward.
               o.ranks > 1 ? "" : fmt::format("{:.0f} %", 100 * double(p.gradients_at_peak) / double(p.gradients)),
               all.memory && p.peak > all.memory ? "  too much" : "");
  fmt::print(
      "\nThe columns are sizes at different moments and do not add up to the peak, the most at one time.\n"
      "`backward` is the progress of backward at the peak. 0 %: activations dominate. 100 %: gradients or the\n"
      "optimiser dominate, and a smaller batch or --recompute lowers the peak little.\n");
}

struct Roofline {
  RunConfig run;
  std::vector<DeviceRoofline> machines;
  StepWork work;
  std::vector<WorkOfOp> ops;  // slowest first
};

// --device: a DeviceRoofline; cpu, cuda: all named machines.
Roofline roofline_of(const InspectOptions& o) {
  Roofline all{planned_run(o), {}, {}, {}};
  if (o.device != "cpu" && !o.device.starts_with("cuda"))
    all.machines = {device_roofline(o.device)};
  else
    for (const std::string_view name : detail::device_roofline_names())
      all.machines.push_back(device_roofline(std::string(name)));
  const LoraConfig lora = o.lora.config();
  const auto base = base_of(o);
  all.work = step_work(all.run.model, all.run.train, {}, o.lora.given() || base ? &lora : nullptr, o.lora.base(), base);
  all.ops = all.work.all();
  std::ranges::stable_sort(all.ops, std::greater<>(),
                           [&](const WorkOfOp& op) { return detail::floor_seconds(op, all.machines[0]); });
  return all;
}
// "linear bf16", "cast f32 to bf16"
std::string name_of_row(const WorkOfOp& o) {
  return o.from == o.to ? fmt::format("{} {}", o.op, o.from) : fmt::format("{} {} to {}", o.op, o.from, o.to);
}

Json json_of(const InspectOptions& o, const Roofline& all) {
  Json rows = Json::array(), machines = Json::array();
  for (const WorkOfOp& op : all.ops) {
    Json floors = Json::array();
    for (const DeviceRoofline& m : all.machines) floors.push_back(1e3 * detail::floor_seconds(op, m));
    rows.push_back({{"op", name_of_row(op)},
                    {"calls", op.calls},
                    {"read", op.work.read},
                    {"written", op.work.written},
                    {"flops", 2 * op.work.multiply_adds},
                    {"floor_ms", std::move(floors)}});
  }
  for (const DeviceRoofline& m : all.machines) {
    Json of = {{"name", m.name},
               {"step_ms", 1e3 * detail::floor_seconds(all.ops, m)},
               {"forward_ms", 1e3 * detail::floor_seconds(all.work.forward, m)},
               {"backward_ms", 1e3 * detail::floor_seconds(all.work.backward, m)},
               {"update_ms", 1e3 * detail::floor_seconds(all.work.update, m)}};
    detail::visit_roofline_fields(m, [&](const char* key, double x) { of[key] = x; });
    machines.push_back(std::move(of));
  }
  const auto& [model, t, data, tokenizer] = all.run;
  return {{"model", o.source()},
          {"config", detail::own_json(to_json(model))},
          {"batch", t.batch},
          {"accumulate", t.accumulate},
          {"window", t.window_in(model.context)},
          {"dtype", name_of(t.dtype.value_or(DType::f32))},
          {"recompute", name_of(t.recompute)},
          {"optimizer", name_of(t.optimizer)},
          {"parameters", plan_memory(model, t).parameters},
          {"machines", std::move(machines)},
          {"ops", std::move(rows)}};
}

void print(const InspectOptions& o, const Roofline& all) {
  const TrainConfig& t = all.run.train;
  size_t width = 2;
  for (const WorkOfOp& op : all.ops) width = std::max(width, name_of_row(op).size());
  std::string head;
  for (const DeviceRoofline& m : all.machines) head += fmt::format(" {:>9}", printable(m.name) + " ms");
  fmt::print("{}: a training step of {} x {} x {} tokens in {} by {}, recompute {}\n\n", printable(o.source()),
             t.accumulate, t.batch, t.window_in(all.run.model.context), t.dtype.value_or(DType::f32),
             name_of(t.optimizer), name_of(t.recompute));
  fmt::print("{:{}} {:>7} {:>11} {:>11} {:>11}{}\n", "op", width, "calls", "read MB", "written MB", "GFLOP", head);
  int64_t calls = 0;
  OpWork sum;
  const auto print_row = [&](const std::string& name, int64_t n, const OpWork& work, const auto& ops) {
    std::string floors;
    for (const DeviceRoofline& m : all.machines) floors += fmt::format(" {:9.3f}", 1e3 * detail::floor_seconds(ops, m));
    fmt::print("{:{}} {:>7} {:11.3f} {:11.3f} {:11.3f}{}\n", name, width, n, double(work.read) / 1e6,
               double(work.written) / 1e6, 2 * work.multiply_adds / 1e9, floors);
  };
  for (const WorkOfOp& op : all.ops) {
    print_row(name_of_row(op), op.calls, op.work, op);
    calls += op.calls, sum.read += op.work.read, sum.written += op.work.written;
    sum.multiply_adds += op.work.multiply_adds;
  }
  print_row("all", calls, sum, all.ops);
  fmt::print(
      "\n{:.1f} bytes a parameter, {:.1f} calls a layer. Bytes of inputs and outputs count once for each op,\n"
      "FLOPs without masked positions. The times are lower bounds: for bytes or FLOPs, whichever take longer,\n"
      "plus the time between two ops.\n",
      double(sum.read + sum.written) / double(plan_memory(all.run.model, t).parameters),
      double(calls) / double(all.run.model.layers));
  for (const DeviceRoofline& m : all.machines)
    fmt::print("{}: {:.0f} GB/s; {:.1f} (f32), {:.1f} (bf16), {:.1f} (8 bits) TFLOP/s; {:.1f} us between ops\n",
               printable(m.name), m.gb_per_s, m.f32_tflops, m.bf16_tflops, m.int8_tflops, m.us_per_call);
}

int run(InspectOptions& o) {
  refuse(!o.adapter.empty() && (!o.arch.empty() || o.plan || o.roofline),
         "--adapter lists an adapter, alone or over --model. Leave the other flags out");
  refuse(o.adapter.empty() && o.model.empty() == o.arch.empty(),
         "inspect needs --model, a model folder or .safetensors file, --adapter, or --arch, the name of a model");
  refuse(o.plan && o.roofline, "--plan and --roofline are two tables; ask for one of them");
  const bool of_step = o.plan || o.roofline;
  refuse(!of_step && (o.device != "cpu" || given(o, kOfStep) || given(o, kOfRoofline) || o.lora.given()),
         "--batch, --accumulate, --window, --optimizer, --moments, --split-weights, --linear, --device and the flags "
         "of an adapter need --plan or --roofline");
  refuse(o.lora.base_dtype == "nf4" && o.model.empty(),
         "--base-dtype nf4 is for the weights of a model: give --model in place of --arch");
  refuse(!o.plan && (o.ranks > 1 || given(o, kOfRanks)), "--ranks and --shard-optimizer need --plan");
  refuse(o.plan && given(o, kOfRoofline), "--dtype, --recompute and --clip-norm need --roofline");
  refuse(!of_step && o.arch.empty() && (!o.settings.empty() || !o.config_file.empty()),
         "--config and settings need --plan or a named model: give --arch in place of --model, or pass --plan");
  if (of_step) {
    const auto show = [&](const auto& all) {
      o.json ? fmt::print("{}\n", detail::text_of(json_of(o, all), 2)) : print(o, all);
    };
    o.plan ? show(plans_of(o)) : show(roofline_of(o));
    return 0;
  }
  const Described d = !o.adapter.empty() ? of_adapter(o.adapter)
                      : o.arch.empty()   ? of_file(o.model)
                                         : of_arch(o.arch, planned_run(o).model);
  const std::string modules = o.adapter.empty() || o.model.empty() ? "" : modules_over(o.model, o.adapter);
  o.json ? print_json(d) : print_table(d);
  if (!o.json) fmt::print("{}", modules);
  return 0;
}
void declare(Command& c, InspectOptions& o) {
  c.option("--model", "PATH", "the folder of a model, a .safetensors file or a GGUF file", o.model);
  c.option("--adapter", "DIR", "an adapter; with --model, also the modules that it changes there", o.adapter);
  c.option("--arch", "NAME",
           "a named model or run: " + detail::model_preset_names() + ", " + detail::run_preset_names(), o.arch);
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
  c.option("--device", "NAME",
           "of --plan: cpu or cuda, whose memory is shown; of --roofline: h100, h200 or a JSON file; default: both",
           o.device);
  add_lora_options(c, o.lora);
  add_settings(c, o, [](std::string_view name) {
    return kOfStep.contains(name) || kOfRanks.contains(name) || kOfRoofline.contains(name) ||
           detail::is_model_setting(name);
  });
}

}  // namespace

Subcommand inspect_command() {
  return subcommand<InspectOptions>(
      "inspect", "list the tensors and the configuration of a model in a folder, or of a named model", run, declare);
}

}  // namespace tg::apps
