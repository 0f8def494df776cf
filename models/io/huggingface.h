/// @file
/// Model folders of Hugging Face's transformers: config.json of versions 4 and 5, and weights (Shards). Families:
/// gpt2, llama (and mistral), qwen2 and qwen3, also with a head of classes. Parameters keep their bits both ways.
#pragma once
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/models/io/layout.h>
#include <tapegrad/models/tokenizers/tokenizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// The folder that a model was read from.
struct HuggingFaceSource {
  std::string folder;
  std::string config;                   ///< the text of its config.json
  GptConfig model;                      ///< as read
  std::map<std::string, DType> dtypes;  ///< of the tensors in its files, by their names there
  double dropout = 0;                   ///< pretraining dropout in config.json, not in `model`
  /// Tokens that end a text: eos_token_id of generation_config.json, else of config.json.
  std::vector<int64_t> eos_tokens = {};
};

namespace detail {
/// The text of config.json in the folder of any model.
std::string model_config_text(const std::string& folder);
}  // namespace detail
/// Reads a config.json. Dropout is 0, since the file has that of pretraining. Unknown keys are ignored. `source` names
/// the text in messages. An Error names key and value for an unsupported model_type, a key that would change results,
/// or what GptConfig::validate() refuses.
GptConfig gpt_config_from_huggingface(std::string_view text, const std::string& source);
/// The config.json for both versions of transformers, with GptConfig inside for fields that the family lacks. `dtype`
/// is that of the weights. An Error names fields that no family has.
std::string gpt_config_to_huggingface(const GptConfig&, DType dtype = DType::f32);

/// Reads config.json and the headers of the files. `model` is the exported configuration if the folder still matches
/// the output of save_huggingface().
HuggingFaceSource read_huggingface(const std::string& folder);
/// The weights as parameters of a Gpt with the configuration of read_huggingface(). An Error names the first tensor
/// that is missing, unknown, of another shape, or not F32, BF16 or F16.
TensorSource huggingface_weights(const std::string& folder, const GptConfig&);

/// Writes tokenizer.json and tokenizer_config.json, which AutoTokenizer of transformers reads, into the existing
/// `folder`, each file atomically. `context`: the model's, in tokens. `chat_template`: Jinja.
void save_tokenizer(const std::string& folder, const Tokenizer&, std::optional<int64_t> context = {},
                    const std::string& chat_template = "");

/// Options of save_huggingface().
struct HuggingfaceOptions {
  std::optional<DType> dtype = {};    ///< f32, bf16 or f16; unset: the origin's, else f32
  int64_t max_shard = 5'000'000'000;  ///< bytes of tensors in a file; more are sharded
  /// Keeps its config.json where the values agree, and copies its tokenizer files.
  const HuggingFaceSource* origin = nullptr;
  /// For a model without origin: written as tokenizer.json with a tokenizer_config.json, which load_model() reads.
  const Tokenizer* tokenizer = nullptr;
  std::string chat_template = "";  ///< Jinja; with an origin for chat_template.jinja
};
/// Writes config.json and the weights of a Gpt into the existing `folder`, each file atomically. Parameters of the
/// family that the model lacks are zeros (biases) and ones (norms). An Error names fields that no family has, or a
/// weight that f16 cannot represent.
void save_huggingface(const std::string& folder, const GptConfig&, const Params&, const HuggingfaceOptions& = {});

/// The weights of a folder, open for reading: model.safetensors, or several files ("shards") and
/// model.safetensors.index.json, which maps tensors to files.
class Shards {
 public:
  /// Opens the files and reads their headers. An Error if there are none, a file is damaged or outside the folder, or
  /// index and files disagree.
  explicit Shards(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::vector<std::string> names() const;  ///< of all tensors, sorted
  bool has(const std::string& name) const { return where_.contains(name); }
  /// The file of an existing tensor.
  const SafetensorsFile& file_of(const std::string& name) const { return files_[where_.at(name)]; }
  const SafetensorsInfo& info(const std::string& name) const { return file_of(name).info(name); }
  Tensor tensor(const std::string& name) const { return file_of(name).tensor(name); }

 private:
  void open_all(const std::string& index);
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> where_;  // name -> index in files_
};

namespace detail {
/// The eos_token_id of a folder's generation_config.json, else config.json.
std::vector<int64_t> eos_tokens_of_huggingface(const std::string& folder);
/// The names of files that save_huggingface() may write or remove in `folder`.
std::vector<std::string> huggingface_files(const std::string& folder);
/// Adds tokens to the eos_token_id of a folder's two configurations, and an eos_token to tokenizer_config.json.
void save_ends(const std::string& folder, const std::vector<int64_t>& ends, const Tokenizer&);
/// Writes model.safetensors, or shards of up to `max_shard` bytes and then their index, each file atomically, and calls
/// remove_other_weights(). The tensors of one file are in memory at once. An Error for a weight beyond f16.
void write_shards(const std::string& folder, const std::vector<ExportTensor>&, int64_t max_shard);
/// The names of model.safetensors, its index, and the shards in `folder`.
std::vector<std::string> weight_files(const std::string& folder);
/// Removes former weights after `shards` files were written: the other form, and shards of another number.
void remove_other_weights(const std::string& folder, size_t shards);
}  // namespace detail

}  // namespace tg
