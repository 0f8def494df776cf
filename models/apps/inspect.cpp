// `tapegrad inspect`: what is in the folder of a model or an adapter or in a safetensors file, or what a named model
// would have, as a table or as JSON.
#include <fmt/core.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/safetensors.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/gpt/config_json.h>
#include <tapegrad/models/io/adapter.h>
#include <tapegrad/models/io/json.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/train/run_config.h>

#include <algorithm>
#include <filesystem>
#include <map>

namespace tg::apps {
namespace {

struct Options {
  std::string model, arch;
  bool json = false;
};

struct Contents {
  std::string source;
  Json config;  // null for a file without one
  std::map<std::string, std::string> metadata;
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
    size_t bytes;
  };
  std::vector<Entry> tensors;
};

Contents of_file(const std::string& path) {
  if (const std::string adapter = adapter_path(path);  // the folder of one has no config.json
      adapter != path && std::filesystem::exists(adapter) && !std::filesystem::exists(path + "/config.json"))
    return of_file(adapter);
  const bool folder = std::filesystem::is_directory(path);
  Json config;
  if (folder) config = parse_json(model_config_text(path), "inspect", path + "/config.json");
  const SafetensorsFile file(folder ? path + "/model.safetensors" : path);
  Contents c{file.path(), std::move(config), file.metadata(), {}};
  for (const std::string& name : file.names()) {
    const SafetensorsInfo& t = file.info(name);
    c.tensors.push_back({name, t.dtype, t.shape, t.bytes});
  }
  return c;
}

// Made lazily: shapes and no memory, in the order of the layers.
Contents of_arch(const std::string& name) {
  GptConfig config = arch(name);
  if (config.vocab_size == 0) config.vocab_size = ByteTokenizer().vocab_size();
  Contents c{name, {{"model", Json::parse(to_json(config))}}, {}, {}};
  LazyScope lazy;
  const Params params;
  const Gpt model(params, config);
  for (const Parameter& p : params.all())
    c.tensors.push_back({p.name, p.tensor.dtype(), p.tensor.shape(), p.tensor.layout().bytes()});
  return c;
}

Json describe(const Contents& c) {
  Json tensors = Json::array();
  int64_t elements = 0;
  size_t bytes = 0;
  for (const Contents::Entry& t : c.tensors) {
    tensors.push_back({{"name", t.name},
                       {"dtype", name_of(t.dtype)},
                       {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())},
                       {"bytes", t.bytes}});
    elements += t.shape.product();
    bytes += t.bytes;
  }
  return {{"file", c.source},       {"config", c.config}, {"metadata", c.metadata}, {"tensors", std::move(tensors)},
          {"parameters", elements}, {"bytes", bytes}};
}

std::string text_of(const Json& x) {  // bytes that are no UTF-8 become a sign
  return x.dump(2, ' ', false, Json::error_handler_t::replace);
}

void print_table(const Json& all, const Contents& c) {
  fmt::print("{}: {} tensors, {} parameters, {} bytes\n", c.source, c.tensors.size(), all["parameters"].dump(),
             all["bytes"].dump());
  for (const auto& [key, value] : c.metadata) fmt::print("metadata {}: {}\n", key, value);
  if (!c.config.is_null()) fmt::print("config {}\n", text_of(c.config));
  size_t width = 4;
  for (const Contents::Entry& t : c.tensors) width = std::max(width, t.name.size());
  fmt::print("\n{:{}}  {:18} {:6} {:>12}\n", "name", width, "shape", "dtype", "bytes");
  for (const Contents::Entry& t : c.tensors)
    fmt::print("{:{}}  {:18} {:6} {:12}\n", t.name, width, to_string(t.shape), name_of(t.dtype), t.bytes);
}

void run(const Options& o) {
  if (o.model.empty() == o.arch.empty())
    throw UsageError(
        "inspect needs one of --model, a model folder or .safetensors file, and --arch, the name of a model");
  const Contents c = o.arch.empty() ? of_file(o.model) : of_arch(o.arch);
  const Json all = describe(c);
  if (o.json)
    fmt::print("{}\n", text_of(all));
  else
    print_table(all, c);
}

}  // namespace

Subcommand inspect_command() {
  return {"inspect", "list the tensors and the configuration of a model, or of a named one without making it",
          [](Command& c) -> std::function<int()> {
            auto o = std::make_shared<Options>();
            c.option("--model", "PATH", "the folder of a model or of an adapter, or a .safetensors file", o->model);
            c.option("--arch", "NAME", "a named model: " + arch_names(), o->arch);
            c.toggle("--json", "print JSON", o->json);
            return [o] {
              run(*o);
              return 0;
            };
          }};
}

}  // namespace tg::apps
