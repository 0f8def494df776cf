/// @file
/// The file of a LoRA adapter: a safetensors file with `<module>.lora_a` and `<module>.lora_b` alone. Its metadata has
/// rank, alpha, dropout, seed and targets, from which the adapters are made again over the model that they were trained
/// on. It contains neither that model (model_dir.h) nor a training state (checkpoint.h). `tapegrad finetune`, `merge`
/// and `generate --adapter` use it.
#pragma once
#include <tapegrad/models/model/lora.h>

#include <string>
#include <string_view>

namespace tg {

/// A JSON object with every field.
std::string to_json(const LoraConfig&);
/// The configuration of a JSON object that to_json() wrote. `source` is the name of the text in messages. An Error for
/// a field that is missing, unknown or of the wrong type.
LoraConfig lora_config_from_json(std::string_view text, const std::string& source);

/// A hash of all names, shapes and values: it tells one model's weights from another's. Weights in bf16 have that of
/// the same values in f32. Take it before anything is merged.
std::string weights_hash(const Params&);

/// Writes `path` wholly or not at all. `base` is the weights_hash() of the model without adapters; if it is "",
/// load_adapter() does not compare it. An Error of kind non_finite names the first weight that is infinite or NaN.
void save_adapter(const std::string& path, const Lora&, const std::string& base = "");

/// Calls apply_lora() with the file's configuration, and sets the file's values. If the adapter was trained over
/// weights in bf16, the model's weights are rounded to bf16 first, whatever their dtype: the adapter is a change of
/// those. An Error names the file and what is wrong: the file is damaged or something else, the adapter was trained
/// over other weights, or a tensor is missing, unknown or of another shape than the model's module takes. The model is
/// unchanged then.
Lora load_adapter(const std::string& path, const Linears& model, const Params& base);
/// Gives existing adapters the file's values. An Error if rank, alpha or modules differ; nothing has changed then.
void assign_adapter(const std::string& path, const Lora&);

/// The path itself if it is a file; in a folder, the path of the adapter that finetuning wrote there. An Error if there
/// is none.
std::string adapter_path(const std::string& path_or_folder);

}  // namespace tg
