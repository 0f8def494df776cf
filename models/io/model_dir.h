/// @file
/// Model folders, for generation: model.safetensors, config.json (configuration, tokenizer, training settings) and
/// tokenizer.json for a BpeTokenizer. They cannot resume training. Folders of Hugging Face (huggingface.h) are read as
/// well.
#pragma once
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/io/huggingface.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/models/tokenizers/tokenizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace tg {

/// Matrices that load_model() keeps frozen, in blocks (BlockWeight), for LoRA and generation.
enum class Blocks {
  none,       ///< all weights are parameters
  file,       ///< those that a GGUF file has in blocks
  nf4,        ///< those of the Linear layers of a Gpt's blocks: quantize_nf4()
  nf4_values  ///< none, but parameters have the values of nf4
};

/// Contents of config.json.
struct ModelFile {
  std::string config;                            ///< model configuration, JSON
  std::unique_ptr<Tokenizer> tokenizer;          ///< null if missing or unreadable
  std::optional<HuggingFaceSource> origin = {};  ///< Hugging Face folder
  std::string tokenizer_error = {};              ///< why; token ids still work
};
/// A model from a folder.
template <class M> struct Loaded : ModelFile {
  Params params;
  M model;
};
/// A Gpt from a folder.
using LoadedModel = Loaded<Gpt>;

/// Makes the folder and writes the files, each atomically, and removes old shards (remove_other_weights()).
/// `train_json` is for human readers, or "". An Error if the model has no config() (model.h).
void save_model(const std::string& folder, const Model&, const Params&, const Tokenizer* tokenizer = nullptr,
                const std::string& train_json = "");
/// Writes a Gpt in the format of the folder that it was read from.
void save_model(const std::string& folder, const LoadedModel&);
/// Reads our model, or a Gpt of Hugging Face. M is made from Params and its config() type, with visit_fields()
/// (config_json.h). Weights become f64, f32 or bf16 (rounded), but those in blocks. An Error names file and reason.
template <class M = Gpt>
Loaded<M> load_model(const std::string& folder, Device = {}, DType = DType::f32, Blocks = Blocks::none);
/// Model with another head, of `classes` new outputs (GptConfig::classes), N(0, init_std^2). An Error if it has
/// adapters.
LoadedModel with_new_head(LoadedModel, int64_t classes, uint64_t seed = 0);

namespace detail {
/// Throws an Error unless there is a tokenizer: `error` if not empty, else `none`.
void check_tokenizer(const Tokenizer*, const std::string& error, const std::string& none);
/// Reads config.json and the tokenizer; Hugging Face has tokenizer.json, or vocab.json and merges.txt. A tokenizer that
/// export noted in config.json wins if tokenizer.json matches it.
ModelFile read_model_file(const std::string& folder);
// Drops a tokenizer with more tokens than the model.
void check_fits(const std::string& folder, ModelFile&, int64_t vocab_size);
/// The weights of a model in a folder or a file; in a dry_run() without values.
TensorSource model_weights(const std::string& folder, const ModelFile&, DType, Blocks);
// read() takes the configuration and returns the vocabulary size; make() makes the model from the weights in `params`.
ModelFile load_model(const std::string& folder, bool is_gpt, const Params& params, Blocks,
                     const std::function<int64_t(const std::string&)>& read, const std::function<void()>& make);
}  // namespace detail

template <class M> Loaded<M> load_model(const std::string& folder, Device device, DType dtype, Blocks blocks) {
  std::remove_cvref_t<decltype(std::declval<const M&>().config())> config;
  const auto read = [&](const std::string& text) -> int64_t {
    config =
        detail::config_from_json<decltype(config)>(text, {.name = "\"model\"", .every_field = true, .op = "model"});
    if constexpr (requires { config.vocab_size; }) return config.vocab_size;
    return INT64_MAX;
  };
  const Params params(device, /*seed=*/0, dtype);
  std::optional<M> model;
  ModelFile file =
      detail::load_model(folder, std::is_same_v<M, Gpt>, params, blocks, read, [&] { model.emplace(params, config); });
  return {std::move(file), params, std::move(*model)};
}

}  // namespace tg
