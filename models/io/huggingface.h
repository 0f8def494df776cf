/// @file
/// Model folders of Hugging Face's transformers: config.json of versions 4 and 5, and weights (Shards). Families:
/// gpt2, llama (and mistral), qwen2 and qwen3, also with a head of classes. Reading and writing keep bits.
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
  std::string config;                   ///< config.json
  GptConfig model;                      ///< the configuration read
  std::map<std::string, DType> dtypes;  ///< dtypes in files, by names there
  /// Tokens that end a text: eos_token_id of generation_config.json, else of config.json.
  std::vector<int64_t> eos_tokens = {};
};

/// Options of save_huggingface().
struct HuggingfaceOptions {
  std::optional<DType> dtype = {};    ///< f32, bf16 or f16; unset: as the origin, else f32
  int64_t max_shard = 5'000'000'000;  ///< bytes of tensors per file
  /// The folder whose tokenizer files, and equal values of config.json, are kept.
  const HuggingFaceSource* origin = nullptr;
  /// Without origin: written as tokenizer.json with tokenizer_config.json.
  const Tokenizer* tokenizer = nullptr;
  std::string chat_template = "";  ///< Jinja; of an origin: chat_template.jinja
};
/// Writes config.json and the weights of a Gpt into `folder`, atomically each. Parameters that the model
/// lacks: zeros (biases), ones (norms). An Error names fields that no family has, or a weight that f16 cannot
/// represent.
void save_huggingface(const std::string& folder, const GptConfig&, const Params&, const HuggingfaceOptions& = {});

/// Weights of a folder: model.safetensors, or several files and model.safetensors.index.json, which maps tensors to
/// files.
class Shards {
 public:
  /// Reads headers. An Error without files, if a file is damaged or outside the folder, or if index and files disagree.
  explicit Shards(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::vector<std::string> names() const;  ///< sorted tensor names
  bool has(const std::string& name) const { return where_.contains(name); }
  const SafetensorsFile& file_of(const std::string& name) const { return files_[where_.at(name)]; }
  const SafetensorsInfo& info(const std::string& name) const { return file_of(name).info(name); }
  Tensor tensor(const std::string& name) const { return file_of(name).tensor(name); }

 private:
  void open_all(const std::string& index);
  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> where_;
};

namespace detail {
/// Text of config.json in the folder of any model. A GGUF file has one as transformers would write it.
std::string model_config_text(const std::string& folder);
/// Reads a config.json; ignores unknown keys. Messages have `source`. An Error names key
/// and value for an unsupported model_type, a key that would change results, or what GptConfig::validate() refuses.
GptConfig gpt_config_from_huggingface(std::string_view text, const std::string& source);
/// config.json for both versions, with GptConfig for fields that the family lacks; `dtype` of the weights. An Error
/// names fields that no family has.
std::string gpt_config_to_huggingface(const GptConfig&, DType dtype = DType::f32);

/// Reads config.json and the headers of the files. `model` is the exported configuration if the folder still matches
/// it.
HuggingFaceSource read_huggingface(const std::string& folder);
/// Weights as parameters of a Gpt. An Error names the first tensor that is missing, unknown, of another shape, or
/// not F32, BF16 or F16. Those of a GGUF file (gguf_read.h) are made in `dtype`, or stay in blocks.
TensorSource huggingface_weights(const std::string& folder, const GptConfig&, DType dtype = DType::f32,
                                 bool keep_blocks = false);

/// Writes tokenizer.json and tokenizer_config.json for AutoTokenizer into an existing `folder`, atomically each.
/// `context`: the model's, in tokens. `chat_template`: Jinja.
void save_tokenizer(const std::string& folder, const Tokenizer&, std::optional<int64_t> context = {},
                    const std::string& chat_template = "");
/// The eos_token_id of a folder's generation_config.json, else config.json.
std::vector<int64_t> eos_tokens_of_huggingface(const std::string& folder);
/// The names of files that save_huggingface() may write or remove in `folder`.
std::vector<std::string> huggingface_files(const std::string& folder);
/// Adds to eos_token_id of both configurations and eos_token of tokenizer_config.json.
void save_ends(const std::string& folder, const std::vector<int64_t>& ends, const Tokenizer&);
/// Writes model.safetensors or shards of up to `max_shard` bytes, then the index, atomically each; calls
/// remove_other_weights(). Holds one file's tensors. An Error for a weight beyond f16.
void write_shards(const std::string& folder, const std::vector<ExportTensor>&, int64_t max_shard);
/// The names of model.safetensors, its index, and the shards in `folder`.
std::vector<std::string> weight_files(const std::string& folder);
/// Removes weights of the other form, or of another number of shards, once `shards` files were written.
void remove_other_weights(const std::string& folder, size_t shards);
}  // namespace detail

}  // namespace tg
