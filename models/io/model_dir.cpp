#include <tapegrad/core/check.h>
#include <tapegrad/core/file.h>
#include <tapegrad/core/json.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/data/bpe.h>
#include <tapegrad/models/gpt/config_json.h>
#include <tapegrad/models/io/model_dir.h>

#include <filesystem>

namespace tg {
namespace {

constexpr std::string_view kKeys[] = {"model", "tokenizer", "train"};

std::string config_path(const std::string& folder) { return folder + "/config.json"; }
constexpr const char* kTokenizerFile = "tokenizer.json";  // of tokenizers that are long
std::string tokenizer_path(const std::string& folder) { return fmt::format("{}/{}", folder, kTokenizerFile); }
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
  const bool in_file = dynamic_cast<const BpeTokenizer*>(tokenizer);
  if (in_file) write_file_atomically(tokenizer_path(folder), tokenizer->to_json());
  if (in_file)
    config["tokenizer"] = kTokenizerFile;
  else
    config["tokenizer"] = tokenizer ? own_json(tokenizer->to_json()) : Json();
  if (!train_json.empty()) config["train"] = own_json(train_json);
  write_file_atomically(config_path(folder), text_of(config, 2) + "\n");
  write_safetensors(weights_path(folder), params.state(), {{"format", "tapegrad"}});
}

ModelFile read_model_file(const std::string& folder) {
  const Json config = read_config(folder);
  ModelFile file{text_of(config["model"]), nullptr};
  detail::in_config_file(folder, [&] {
    const Json* t = config.find("tokenizer");
    if (t && *t == Json(kTokenizerFile))
      file.tokenizer = std::make_unique<BpeTokenizer>(read_tokenizer(tokenizer_path(folder)));
    else if (t && !t->is_null())
      file.tokenizer = Tokenizer::from_json(text_of(*t));
  });
  return file;
}

namespace detail {
void in_config_file(const std::string& folder, const std::function<void()>& f) { in_file(config_path(folder), f); }
void in_weights_file(const std::string& folder, const Params& params, const std::function<void()>& make_model) {
  params.load(SafetensorsFile(weights_path(folder)).tensors(params.device()));
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
