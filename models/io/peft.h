/// @file
/// LoRA adapters as folders of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors. They contain
/// neither the model (model_dir.h) nor a training state (checkpoint.h). `tapegrad finetune` writes them; `--adapter`
/// reads them, also those of PEFT.
#pragma once
#include <tapegrad/models/io/layout.h>
#include <tapegrad/models/model/lora.h>

#include <string>
#include <vector>

namespace tg {

/// A hash of all names, shapes and values, to identify a model's weights. bf16 weights have the hash of their f32
/// values. Compute it before a merge.
std::string weights_hash(const Params&);

/// The layout_of() of a Gpt, or nothing for a model that no family can hold: its adapters have our names.
std::vector<detail::TensorMapping> adapter_layout(const GptConfig&);

/// Options of save_adapter().
struct AdapterOptions {
  std::vector<detail::TensorMapping> layout = {};  ///< adapter_layout(); empty: our names of modules
  /// weights_hash() of the model without adapters; with "", load_adapter() does not compare it.
  std::string base = "";
  std::string folder = "";         ///< of the base, for base_model_name_or_path
  std::string chat_template = "";  ///< Jinja, for chat_template.jinja
};
/// The names of weights and configuration, which save_adapter() always writes, the last one first.
std::vector<std::string> adapter_files();
/// Writes them, and the chat template if there is one, into `folder`, each atomically, and makes the folder if missing.
/// A layer that PEFT has in parts (attn.qkv of a llama) becomes one module per part, with the same A. An Error of kind
/// non_finite names the first weight that is infinite or NaN.
void save_adapter(const std::string& folder, const Lora&, const AdapterOptions& = {});

/// Calls apply_lora() with the folder's configuration and values, in any floating dtype. All parts of a layer with the
/// same A are one module. If the adapter was trained over bf16 weights, rounds the model's weights to bf16 first. An
/// Error, with the model unchanged, names the file and the reason: damage, other base weights, tensors that disagree
/// with adapter_config.json or the model, or a key that would change results and is not supported
/// (models/io/README.md).
Lora load_adapter(const std::string& folder, const Linears& model, const Params& base,
                  const std::vector<detail::TensorMapping>& layout = {});
/// For the model of load_model(): with adapter_layout() of a Gpt, else with our names.
template <class Loaded> Lora load_adapter(const std::string& folder, Loaded& m) {
  std::vector<detail::TensorMapping> layout;
  if constexpr (requires { adapter_layout(m.model.config()); }) layout = adapter_layout(m.model.config());
  return load_adapter(folder, m.model, m.params, layout);
}

/// The base of an adapter.
struct AdapterBase {
  std::string folder;        ///< base_model_name_or_path, or ""
  std::string hash;          ///< its weights_hash(), or "" in files of PEFT
  DType dtype = DType::f32;  ///< of the weights that it was trained over
};
/// Reads it. An Error if the folder has no adapter.
AdapterBase adapter_base(const std::string& folder);

/// The delta of one module of another program: scale B A.
struct AdapterModule {
  std::string name;  ///< theirs
  Tensor a, b;       ///< (r, in) and (rows, r), with their order of rows
  int64_t rank = 0;
  double alpha = 0, scale = 0;
};
/// The modules of a layout's names, in the order of the model.
std::vector<AdapterModule> adapter_modules(const Lora&, const std::vector<detail::TensorMapping>& layout);

}  // namespace tg
