/// @file
/// The folder of a trained model: model.safetensors with the parameters, and config.json with the model's
/// configuration, its tokenizer and how it was trained: all that generation needs. A BpeTokenizer is in tokenizer.json
/// beside them. It is not a training state to resume from. Folders of Hugging Face (huggingface.h) are read as well,
/// with their tokenizer.json. The command line uses it, and programs that load what it trained.
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
  std::unique_ptr<Tokenizer> tokenizer;  ///< null if the folder has none, or one that cannot be read
  std::optional<Origin> origin = {};     ///< set if the folder is one of Hugging Face
  std::string tokenizer_error = {};      ///< why the tokenizer cannot be read; work on token ids does not need it
};
/// A Gpt from a folder.
using LoadedModel = Loaded<Gpt>;

/// Writes the files into `folder`, which exists; each wholly or not at all. Shards of weights that were there go
/// (remove_other_weights()). `train_json` is stored as it is, for human readers; "" leaves it out. An Error if the
/// model has no config() (model.h).
void save_model(const std::string& folder, const Model&, const Params&, const Tokenizer* tokenizer = nullptr,
                const std::string& train_json = "");
/// Writes a Gpt as the kind of folder that it was read from, Hugging Face's or our own.
void save_model(const std::string& folder, const LoadedModel&);
/// Reads a model to a device, from a folder of ours or of Hugging Face, which has a Gpt. M is made from Params and the
/// type that its config() returns, which has visit_fields() (config_json.h). The weights are converted to the dtype:
/// f64, f32 or bf16, which rounds wider ones. An Error names the file and what is wrong in it.
template <class M = Gpt> Loaded<M> load_model(const std::string& folder, Device = {}, DType = DType::f32);
/// The JSON text of the configuration in folder/config.json, as it was written.
std::string model_config_text(const std::string& folder);

/// What config.json says.
struct ModelFile {
  std::string config;  ///< of the model, JSON
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<Origin> origin = {};
  std::string tokenizer_error = {};  ///< why the tokenizer cannot be read
};
/// Reads folder/config.json and the tokenizer. In a folder of Hugging Face it is that of its tokenizer.json, or of
/// vocab.json and merges.txt; the one that export noted in config.json counts if tokenizer.json still is its.
ModelFile read_model_file(const std::string& folder);
/// Before text is read or written: an Error, `error` if it is not empty, else `none`, unless there is a tokenizer.
void check_tokenizer(const Tokenizer*, const std::string& error, const std::string& none);

namespace detail {
// Errors of f() about the config.json of a folder, with its path.
void in_config_file(const std::string& folder, const std::function<void()>& f);
// Loads the weights of a folder, calls make_model(), and checks that it took all of them. The configuration is that of
// a folder of Hugging Face, and null for others.
void in_weights_file(const std::string& folder, const GptConfig*, const Params&,
                     const std::function<void()>& make_model);
// An Error if the folder is one of Hugging Face, for models other than Gpt.
void check_native(const std::string& folder, const ModelFile&);
// A tokenizer of more tokens than the model has is taken away, with an error.
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
