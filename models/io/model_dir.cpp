#include <tapegrad/core/check.h>
#include <tapegrad/core/file.h>
#include <tapegrad/core/json.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/gpt/config_json.h>
#include <tapegrad/models/io/model_dir.h>

#include <filesystem>

namespace tg {
namespace {

constexpr std::string_view kKeys[] = {"model", "tokenizer", "train"};

std::string config_path(const std::string& folder) { return folder + "/config.json"; }
std::string weights_path(const std::string& folder) { return folder + "/model.safetensors"; }

Json read_config(const std::string& folder) {
  const std::string path = config_path(folder);
  Json config = parse_json(model_config_text(folder), "model", path);
  TG_CHECK(config.is_object() && config.contains("model"), value,
           "[model] {} has no object \"model\". It must be as training writes it. Is it the config of another program?",
           path);
  check_keys("model", path, config, kKeys);
  return config;
}

// Errors of f() about what a file holds, with its path.
void in_file(const std::string& path, const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    if (std::string_view(e.what()).find(path) != std::string_view::npos) throw;
    throw Error(e.kind(), fmt::format("{}\n    in {}", e.what(), path), e.scoped());
  }
}

}  // namespace

void save_model(const std::string& folder, const Model& model, const Params& params, const Tokenizer* tokenizer,
                const std::string& train_json) {
  Json config;
  config["model"] = own_json(model.config());
  config["tokenizer"] = tokenizer ? own_json(tokenizer->to_json()) : Json();
  if (!train_json.empty()) config["train"] = own_json(train_json);
  write_file_atomically(config_path(folder), text_of(config, 2) + "\n");
  write_safetensors(weights_path(folder), params.state(), {{"format", "tapegrad"}});
}

ModelFile read_model_file(const std::string& folder) {
  const Json config = read_config(folder);
  ModelFile file{text_of(config["model"]), nullptr};
  detail::in_config_file(folder, [&] {
    if (const Json* t = config.find("tokenizer"); t && !t->is_null())
      file.tokenizer = Tokenizer::from_json(text_of(*t));
  });
  return file;
}

namespace detail {
void in_config_file(const std::string& folder, const std::function<void()>& f) { in_file(config_path(folder), f); }
void in_weights_file(const std::string& folder, const Params& params, const std::function<void()>& make_model) {
  const auto file = std::make_shared<const SafetensorsFile>(weights_path(folder));
  TensorSource source{.shapes = {}, .read = [file](const std::string& name) { return file->tensor(name); }};
  for (const std::string& name : file->names()) source.shapes[name] = file->info(name).shape;
  params.load(std::move(source));
  in_file(weights_path(folder), [&] {
    make_model();
    params.check_all_used();
  });
}
void check_tokenizer(const std::string& folder, const Tokenizer* tokenizer, int64_t vocab_size) {
  TG_CHECK(!tokenizer || tokenizer->vocab_size() <= vocab_size, value,
           "[model] {}: the tokenizer has {} tokens and the model {}. The model must have as many or more; restore the "
           "file.",
           config_path(folder), tokenizer->vocab_size(), vocab_size);
}
}  // namespace detail

std::string model_config_text(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  TG_CHECK(
      fs::exists(config_path(folder), error) || !fs::exists(folder + "/adapter.safetensors", error), value,
      "[model] {} is the folder of an adapter, which changes a model and is none. Pass the model that was finetuned as "
      "--model and this folder as --adapter, or merge both with `tapegrad merge`.",
      folder);
  return std::string(MappedFile(config_path(folder)).text());
}

}  // namespace tg
