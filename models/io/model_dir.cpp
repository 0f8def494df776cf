#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/gguf.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/ops/factories.h>

#include <algorithm>

namespace tg {
namespace {

constexpr std::string_view kKeys[] = {"model", "tokenizer", "train"};

std::string config_path(const std::string& folder) {
  return detail::is_gguf(folder) ? folder : folder + "/config.json";
}
constexpr const char* kTokenizerFile = "tokenizer.json";  // file of long tokenizers
std::string tokenizer_path(const std::string& folder) { return fmt::format("{}/{}", folder, kTokenizerFile); }
std::string weights_path(const std::string& folder) { return folder + "/model.safetensors"; }

Json read_config(const std::string& folder) {
  const std::string path = config_path(folder);
  Json config = detail::parse_json(detail::model_config_text(folder), "model", path, 8);
  TG_CHECK(config.is_object() && (config.contains("model") || config.contains("model_type")), value,
           "[model] {} has no object \"model\", as training writes it, and no \"model_type\", as Hugging Face's "
           "libraries do. Is it the config of another program?",
           path);
  if (config.contains("model")) check_keys("model", path, config, kKeys);
  return config;
}

// Files of the folder override config.json.
std::unique_ptr<Tokenizer> tokenizer_of(const std::string& folder, const Json* noted, bool foreign) {
  const auto has = [&](const char* name) { return detail::path_exists(folder + "/" + name); };
  const auto as_noted = [&] { return Tokenizer::from_json(detail::text_of(*noted)); };
  const auto in_files = [&] { return std::make_unique<BpeTokenizer>(read_tokenizer(folder)); };
  const bool is_noted = noted && !noted->is_null() && *noted != Json(kTokenizerFile);
  if (!foreign) return is_noted ? as_noted() : noted && !noted->is_null() ? in_files() : nullptr;
  if (is_noted) {
    if (!has(kTokenizerFile)) return as_noted();
    std::unique_ptr<Tokenizer> t = as_noted();
    if (tokenizer_json(*t) == MappedFile(tokenizer_path(folder)).text()) return t;
  }
  if (detail::is_gguf(folder) || has(kTokenizerFile) || has("vocab.json") || has("tokenizer.model")) return in_files();
  return nullptr;
}

}  // namespace

void save_model(const std::string& folder, const Model& model, const Params& params, const Tokenizer* tokenizer,
                const std::string& train_json) {
  Json config;
  config["model"] = detail::own_json(model.config());
  const bool in_file = dynamic_cast<const BpeTokenizer*>(tokenizer);
  detail::make_folder(folder);
  if (in_file) detail::write_file_atomically(tokenizer_path(folder), tokenizer->to_json());
  if (in_file)
    config["tokenizer"] = kTokenizerFile;
  else
    config["tokenizer"] = tokenizer ? detail::own_json(tokenizer->to_json()) : Json();
  if (!train_json.empty()) config["train"] = detail::own_json(train_json);
  detail::write_file_atomically(config_path(folder), detail::text_of(config, 2) + "\n");
  write_safetensors(weights_path(folder), params.state(), {{"format", "tapegrad"}});
  detail::remove_other_weights(folder, 1);
}

void save_model(const std::string& folder, const LoadedModel& m) {
  if (!m.origin) return save_model(folder, m.model, m.params, m.tokenizer.get());
  save_huggingface(folder, m.model.config(), m.params, {.origin = &*m.origin});
}

LoadedModel with_new_head(LoadedModel m, int64_t classes, uint64_t seed) {
  const auto adapted = [](const NamedLinear& l) { return bool(l.layer->adapter); };
  TG_CHECK(classes > 0 && std::ranges::none_of(m.model.linears(), adapted), value,
           "[model] a new head of {} classes. It must have 1 or more, and be made before apply_lora().", classes);
  GptConfig c = m.model.config();
  c.classes = classes, c.head_bias = false;
  c.validate();
  const Params params(m.params.device(), seed, m.params.dtype());
  StateDict tensors = m.params.state();
  tensors.erase("lm_head.weight"), tensors.erase("lm_head.bias");
  tensors["score.weight"] = Init::normal(c.init_std).make({classes, c.width}, params.dtype(), params.device(), {seed});
  params.load(std::move(tensors));
  m.model = Gpt(params, c);
  params.check_all_used();
  m.params = params;
  return m;
}
ModelFile detail::read_model_file(const std::string& folder) {
  const Json config = read_config(folder);
  ModelFile file;
  if (config.contains("model")) {
    file.config = text_of(config["model"]);
  } else {
    file.origin = read_huggingface(folder);
    file.config = to_json(file.origin->model);
  }
  const Json* const noted = (file.origin ? config.member("tapegrad") : config).find("tokenizer");
  try {
    in_file(config_path(folder), [&] { file.tokenizer = tokenizer_of(folder, noted, bool(file.origin)); });
  } catch (const Error& e) {
    file.tokenizer_error = e.what();
  }
  return file;
}

namespace detail {
void check_fits(const std::string& folder, ModelFile& file, int64_t vocab_size) {
  if (!file.tokenizer) return;
  const auto* const bpe = dynamic_cast<const BpeTokenizer*>(file.tokenizer.get());
  if ((bpe ? bpe->plain_vocab_size() : file.tokenizer->vocab_size()) <= vocab_size) return;
  file.tokenizer_error = fmt::format(
      "[model] {}: the tokenizer has {} tokens and the model {}. The model must have at least as many; restore the "
      "file.",
      config_path(folder), file.tokenizer->vocab_size(), vocab_size);
  file.tokenizer.reset();
}
TensorSource model_weights(const std::string& folder, const ModelFile& file, DType dtype, Blocks blocks) {
  TensorSource source;
  const bool nf4 = blocks == Blocks::nf4 || blocks == Blocks::nf4_values;
  if (file.origin) {
    TG_CHECK(!nf4 || !is_gguf(folder), value,
             "[model] {} is a GGUF file, whose blocks nf4 would quantize again. Leave nf4 out.", folder);
    source = huggingface_weights(folder, file.origin->model, dtype, blocks == Blocks::file);
  } else {
    const auto weights = std::make_shared<const SafetensorsFile>(weights_path(folder));
    source.read = [weights](const std::string& name) { return weights->tensor(name); };
    for (const std::string& name : weights->names()) source.shapes[name] = weights->info(name).shape;
  }
  const auto shapes = source.shapes;
  if (running_dry()) source.read = [=](const std::string& name) { return zeros(shapes.at(name), dtype); };
  if (nf4)
    source.blocks = [=, read = source.read](const std::string& name) -> std::optional<BlockWeight> {
      const Shape& s = shapes.at(name);
      const bool fits =
          name.starts_with("h.") && s.size() == 2 && s[1] % layout_of_block(BlockFormat::nf4).elements == 0;
      if (!fits) return {};
      NoGradScope off;
      BlockWeight w = quantize_nf4(read(name).to(DType::f32));
      eval({w.parts[0].codes});
      return w;
    };
  if (blocks == Blocks::nf4_values)
    source.read = [=, read = source.read, all = std::exchange(source.blocks, {})](const std::string& name) {
      const auto w = all(name);
      return w ? dequantize(*w, DType::f32) : read(name);
    };
  return source;
}
ModelFile load_model(const std::string& folder, bool is_gpt, const Params& params, Blocks blocks,
                     const std::function<int64_t(const std::string&)>& read, const std::function<void()>& make) {
  ModelFile file = read_model_file(folder);
  TG_CHECK(is_gpt || !file.origin, value,
           "[model] {} is a folder of Hugging Face, which has a Gpt, and a model of another type is asked for. Load it "
           "as load_model<Gpt>().",
           folder);
  check_fits(folder, file, in_file(config_path(folder), [&] { return read(file.config); }));
  params.load(model_weights(folder, file, params.dtype(), blocks));
  in_file(file.origin ? folder : weights_path(folder), [&] {
    make();
    params.check_all_used();
  });
  return file;
}
}  // namespace detail

void detail::check_tokenizer(const Tokenizer* tokenizer, const std::string& error, const std::string& none) {
  if (!tokenizer) throw Error(Error::Kind::value, error.empty() ? none : error);
}

}  // namespace tg
