/// @file
/// The file of a LoRA adapter: a safetensors file with <module>.lora_a and <module>.lora_b alone, and in its metadata
/// rank, alpha, dropout, seed and targets, from which the adapters are made again over the model that they were trained
/// on. Not that model (model_dir.h) and not a training state (checkpoint.h). Users: `tapegrad finetune`, `merge` and
/// `generate --adapter`.
#pragma once
#include <tapegrad/models/gpt/lora.h>

#include <string>
#include <string_view>

namespace tg {

/// An object with every field, and its inverse; `source` is what messages call the text. An Error for a field that is
/// missing, unknown or of the wrong type.
std::string to_json(const LoraConfig&);
LoraConfig lora_config_from_json(std::string_view text, const std::string& source);

/// Of all names, shapes, dtypes and bits: tells one model's weights from another's. Take it before anything is merged.
std::string weights_hash(const Params&);

/// Writes `path` wholly or not at all. `base` is the weights_hash() of the model without adapters; "" leaves it out,
/// and then load_adapter() does not compare it. An Error of kind non_finite names the first weight that is infinite or
/// NaN.
void save_adapter(const std::string& path, const GptLora&, const std::string& base = "");

/// apply_lora() as the file says, with the file's values. An Error names the file and what is wrong: it is damaged or
/// of something else, was trained over other weights, or has a tensor that is missing, unknown, or of another shape
/// than the model's module takes; the model is as it was then.
GptLora load_adapter(const std::string& path, Gpt& model, const Params& base);
/// Gives adapters that exist the file's values. An Error when rank, alpha or modules differ; nothing has changed then.
void assign_adapter(const std::string& path, const GptLora&);

/// The path itself, or that of the adapter in a folder, as finetuning writes it.
std::string adapter_path(const std::string& path_or_folder);

}  // namespace tg
