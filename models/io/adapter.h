/// @file
/// LoRA adapter files: safetensors with `<module>.lora_a` and `<module>.lora_b`. Metadata has rank, alpha, dropout,
/// seed and targets, to make the adapters again over their model. They contain neither the model (model_dir.h) nor a
/// training state (checkpoint.h). `tapegrad finetune`, `merge` and `generate --adapter` use them.
#pragma once
#include <tapegrad/models/model/lora.h>

#include <string>
#include <string_view>

namespace tg {

/// A JSON object with every field.
std::string to_json(const LoraConfig&);
/// Reads the output of to_json(). `source` names the text in messages. An Error for a missing, unknown or wrongly typed
/// field.
LoraConfig lora_config_from_json(std::string_view text, const std::string& source);

/// A hash of all names, shapes and values, to identify a model's weights. bf16 weights have the hash of their f32
/// values. Compute it before a merge.
std::string weights_hash(const Params&);

/// Writes `path` atomically. `base` is the weights_hash() of the model without adapters; with "", load_adapter() does
/// not compare it. An Error of kind non_finite names the first weight that is infinite or NaN.
void save_adapter(const std::string& path, const Lora&, const std::string& base = "");

/// Calls apply_lora() with the file's configuration and values. If the adapter was trained over bf16 weights, rounds
/// the model's weights to bf16 first. An Error, with the model unchanged, names the file and the reason: damage,
/// another format, other base weights, or a tensor that is missing, unknown or of another shape.
Lora load_adapter(const std::string& path, const Linears& model, const Params& base);
/// Loads a file into existing adapters. An Error, without any change, if rank, alpha or modules differ.
void assign_adapter(const std::string& path, const Lora&);

/// The path itself for a file, or the adapter file in a folder. An Error if there is none.
std::string adapter_path(const std::string& path_or_folder);

}  // namespace tg
