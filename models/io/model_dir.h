/// @file
/// Model folders, for generation: model.safetensors, config.json (configuration, tokenizer, training settings) and
/// tokenizer.json for a BpeTokenizer. They cannot resume training. Folders of Hugging Face (huggingface.h) are read as
/// well.
#pragma once
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/gpt/config_json.h>
#include <tapegrad/models/io/huggingface.h>
#include <tapegrad/models/model/model.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace tg {

/// A model from a folder.
template <class M> struct Loaded {
  Params params;
  M model;
  std::unique_ptr<Tokenizer> tokenizer;  ///< null if missing or unreadable
  std::optional<Origin> origin = {};     ///< set for a folder of Hugging Face
  std::string tokenizer_error = {};      ///< why it is unreadable; token ids still work
};
/// A Gpt from a folder.
using LoadedModel = Loaded<Gpt>;

/// Writes the files into an existing folder, each atomically, and removes old shards (remove_other_weights()).
/// `train_json` is stored for human readers; "" leaves it out. An Error if the model has no config() (model.h).
void save_model(const std::string& folder, const Model&, const Params&, const Tokenizer* tokenizer = nullptr,
                const std::string& train_json = "");
/// Writes a Gpt in the format of the folder that it was read from.
void save_model(const std::string& folder, const LoadedModel&);
/// Reads a model from our folder, or a Gpt from one of Hugging Face. M is made from Params and the type of its
/// config(), which has visit_fields() (config_json.h). Weights are converted to dtype f64, f32 or bf16 (rounded). An
/// Error names the file and the reason.
template <class M = Gpt> Loaded<M> load_model(const std::string& folder, Device = {}, DType = DType::f32);
/// The configuration in folder/config.json, as JSON text.
std::string model_config_text(const std::string& folder);

/// The contents of config.json.
struct ModelFile {
  std::string config;  ///< of the model, JSON
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<Origin> origin = {};
  std::string tokenizer_error = {};  ///< why it is unreadable
};
/// Reads folder/config.json and the tokenizer. A folder of Hugging Face has it in tokenizer.json, or vocab.json and
/// merges.txt. A tokenizer that export noted in config.json wins if tokenizer.json still matches it.
ModelFile read_model_file(const std::string& folder);
/// Throws an Error unless there is a tokenizer: `error` if not empty, else `none`.
void check_tokenizer(const Tokenizer*, const std::string& error, const std::string& none);

namespace detail {
// Adds the path of config.json to Errors of f().
void in_config_file(const std::string& folder, const std::function<void()>& f);
// Loads the weights, calls make_model(), and checks that it took all of them. The GptConfig is null except for a folder
// of Hugging Face.
void in_weights_file(const std::string& folder, const GptConfig*, const Params&,
                     const std::function<void()>& make_model);
// An Error for a folder of Hugging Face: it has a Gpt.
void check_native(const std::string& folder, const ModelFile&);
// Drops a tokenizer with more tokens than the model, and sets its error.
void check_fits(const std::string& folder, ModelFile&, int64_t vocab_size);
}  // namespace detail

template <class M> Loaded<M> load_model(const std::string& folder, Device device, DType dtype) {
  ModelFile file = read_model_file(folder);
  if constexpr (!std::is_same_v<M, Gpt>) detail::check_native(folder, file);
  std::remove_cvref_t<decltype(std::declval<const M&>().config())> config;
  detail::in_config_file(folder, [&] {
    config = config_from_json<decltype(config)>(file.config, {.name = "\"model\"", .every_field = true, .op = "model"});
  });
  if constexpr (requires { config.vocab_size; }) detail::check_fits(folder, file, config.vocab_size);
  const Params params(device, /*seed=*/0, dtype);
  std::optional<M> model;
  const GptConfig* foreign = file.origin ? &file.origin->model : nullptr;
  detail::in_weights_file(folder, foreign, params, [&] { model.emplace(params, config); });
  return {params, std::move(*model), std::move(file.tokenizer), std::move(file.origin),
          std::move(file.tokenizer_error)};
}

}  // namespace tg
