/// @file
/// Model folders of Hugging Face's transformers, in and out: config.json in the forms of versions 4 and 5, and weights
/// as shards.h has them. The families are gpt2, llama (and mistral), qwen2 and qwen3. Parameters keep their bits both
/// ways. load_model() (model_dir.h) reads these folders as it reads its own, and `tapegrad export` writes them.
#pragma once
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/io/layout.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// The folder that a model was read from.
struct Origin {
  std::string folder;
  std::string config;                   ///< the text of its config.json
  GptConfig model;                      ///< that it was read as
  std::map<std::string, DType> dtypes;  ///< of the tensors in its files, by their names there
  double dropout = 0;                   ///< that config.json names for pretraining, and `model` does not have
  /// The tokens that end a text: eos_token_id of its generation_config.json, else of its config.json.
  std::vector<int64_t> eos_tokens = {};
};

/// What a config.json of transformers says about the model, whose dropout is 0: values there are those of pretraining.
/// Unknown keys are ignored. An Error names key and value for a model_type that is not read, for a key that would
/// change results, and for all that GptConfig::validate() refuses. `source` is the name of the text in messages.
GptConfig gpt_config_from_huggingface(std::string_view text, const std::string& source);
/// The eos_token_id of a config.json or generation_config.json: a number or a list; empty if it has none.
std::vector<int64_t> eos_tokens_from_huggingface(std::string_view text, const std::string& source);
/// The config.json of such a model, which both versions of transformers read. It has the configuration itself too, for
/// what the family cannot say. `dtype` is that of the weights. An Error names the fields that no family has.
std::string gpt_config_to_huggingface(const GptConfig&, DType dtype = DType::f32);

/// Reads config.json and the headers of the files. `model` is the configuration of the model that was exported, if the
/// folder still says the same as save_huggingface() wrote.
Origin read_huggingface(const std::string& folder);
/// The names of the files that save_huggingface() may write beside shards.
std::vector<std::string> huggingface_files();
/// The weights of a folder as the parameters of a Gpt with the configuration of read_huggingface(). An Error names the
/// first tensor that is missing, of another shape, not F32, BF16 or F16, or no part of the model.
TensorSource huggingface_weights(const std::string& folder, const GptConfig&);

/// Options of save_huggingface().
struct HuggingfaceOptions {
  std::optional<DType> dtype = {};    ///< f32, bf16 or f16; unset: those of the origin, else f32
  int64_t max_shard = 5'000'000'000;  ///< bytes of tensors in a file; more are cut into shards
  /// Its config.json is kept where it says the same, and the files of its tokenizer are copied.
  const Origin* origin = nullptr;
  /// Of a model that has no origin: written as tokenizer.json, with a tokenizer_config.json. load_model() finds it
  /// again.
  const Tokenizer* tokenizer = nullptr;
};
/// Writes config.json and the weights of a Gpt into `folder`, which exists, for transformers to load; each file wholly
/// or not at all. What the family has and the model lacks is written as zeros (biases) and ones (norms). An Error names
/// the fields that no family has, and a weight that f16 cannot hold.
void save_huggingface(const std::string& folder, const GptConfig&, const Params&, const HuggingfaceOptions& = {});

}  // namespace tg
