// `tapegrad inspect`: what is in a model folder or in a safetensors file, as a table or as JSON.
#include <fmt/core.h>
#include <tapegrad/core/safetensors.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/io/json.h>
#include <tapegrad/models/io/model_dir.h>

#include <algorithm>
#include <filesystem>

namespace tg::apps {
namespace {

struct Options {
  std::string model;
  bool json = false;
};

struct Contents {
  Json config;  // null for a file without one
  SafetensorsFile file;
};
Contents open(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return {Json(), SafetensorsFile(path)};
  Json config = parse_json(model_config_text(path), "inspect", path + "/config.json");
  return {std::move(config), SafetensorsFile(path + "/model.safetensors")};
}

Json describe(const Contents& c) {
  Json tensors = Json::array();
  int64_t elements = 0;
  size_t bytes = 0;
  for (const std::string& name : c.file.names()) {
    const SafetensorsInfo& t = c.file.info(name);
    tensors.push_back({{"name", name},
                       {"dtype", name_of(t.dtype)},
                       {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())},
                       {"bytes", t.bytes}});
    elements += t.shape.product();
    bytes += t.bytes;
  }
  return {{"file", c.file.path()},         {"config", c.config},     {"metadata", c.file.metadata()},
          {"tensors", std::move(tensors)}, {"parameters", elements}, {"bytes", bytes}};
}

std::string text_of(const Json& x) {  // bytes that are no UTF-8 become a sign
  return x.dump(2, ' ', false, Json::error_handler_t::replace);
}

void print_table(const Json& all, const SafetensorsFile& file) {
  fmt::print("{}: {} tensors, {} parameters, {} bytes\n", file.path(), all["tensors"].size(), all["parameters"].dump(),
             all["bytes"].dump());
  for (const auto& [key, value] : file.metadata()) fmt::print("metadata {}: {}\n", key, value);
  if (!all["config"].is_null()) fmt::print("config {}\n", text_of(all["config"]));
  size_t width = 4;
  for (const std::string& name : file.names()) width = std::max(width, name.size());
  fmt::print("\n{:{}}  {:18} {:6} {:>12}\n", "name", width, "shape", "dtype", "bytes");
  for (const std::string& name : file.names()) {
    const SafetensorsInfo& t = file.info(name);
    fmt::print("{:{}}  {:18} {:6} {:12}\n", name, width, to_string(t.shape), name_of(t.dtype), t.bytes);
  }
}

void run(const Options& o) {
  if (o.model.empty()) throw UsageError("inspect needs --model DIR, or a .safetensors file");
  const Contents c = open(o.model);
  const Json all = describe(c);
  if (o.json)
    fmt::print("{}\n", text_of(all));
  else
    print_table(all, c.file);
}

}  // namespace

Subcommand inspect_command() {
  return {"inspect", "list the tensors and the configuration of a model", [](Command& c) -> std::function<int()> {
            auto o = std::make_shared<Options>();
            c.option("--model", "PATH", "a model folder or a .safetensors file", o->model);
            c.toggle("--json", "print JSON", o->json);
            return [o] {
              run(*o);
              return 0;
            };
          }};
}

}  // namespace tg::apps
