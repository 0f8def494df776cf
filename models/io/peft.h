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

/// A hash of names, shapes and values; bf16 weights hash like their f32 values. Compute it before a merge.
std::string weights_hash(const Params&);

/// layout_of() of a Gpt; empty if no family can hold it: our names.
detail::TensorMappings adapter_layout(const GptConfig&);

/// Options of save_adapter().
struct AdapterOptions {
  detail::TensorMappings layout = {};  ///< adapter_layout(); empty: our module names
  /// weights_hash() without adapters; "": load_adapter() does not compare.
  std::string base = "";
  std::string folder = "";         ///< base_model_name_or_path
  std::string chat_template = "";  ///< Jinja: chat_template.jinja
  bool nf4 = false;                ///< the base was Blocks::nf4
};
/// Writes them and a chat template into `folder` (made if missing), atomically each. A layer with parts in PEFT (a
/// llama's attn.qkv) becomes a module per part with the same A. An Error of kind non_finite names the first weight that
/// is infinite or NaN.
void save_adapter(const std::string& folder, const Lora&, const AdapterOptions& = {});

/// apply_lora() with the folder's configuration and values of any floating dtype. Parts of a layer with the same A are
/// one module. Rounds the model's weights to bf16 first if the adapter was trained over bf16. An Error, with the model
/// unchanged, names the file and the reason: damage, other base weights, tensors that disagree with adapter_config.json
/// or the model, or a key that would change results and is not supported (models/io/README.md). `trained_over`: weights
/// of the hash, if those of `base` were dequantized; null: `base`.
Lora load_adapter(const std::string& folder, const Linears& model, const Params& base,
                  const detail::TensorMappings& layout = {}, const Params* trained_over = nullptr);
/// For the model of load_model(): with adapter_layout() of a Gpt, else with our names.
template <class Loaded> Lora load_adapter(const std::string& folder, Loaded& m, const Params* trained_over = nullptr) {
  detail::TensorMappings layout;
  if constexpr (requires { adapter_layout(m.model.config()); }) layout = adapter_layout(m.model.config());
  return load_adapter(folder, m.model, m.params, layout, trained_over);
}

/// Base of an adapter.
struct AdapterBase {
  std::string folder;        ///< base_model_name_or_path or ""
  std::string hash;          ///< weights_hash(), or "" in PEFT's files
  DType dtype = DType::f32;  ///< dtype of the base weights
  bool nf4 = false;          ///< AdapterOptions::nf4
};
namespace detail {
/// Reads it. An Error if the folder has no adapter.
AdapterBase adapter_base(const std::string& folder);
/// File names that save_adapter() always writes, last one first.
std::vector<std::string> adapter_files();
}  // namespace detail

/// An external module's delta: scale B A.
struct AdapterModule {
  std::string name;  ///< external name
  Tensor a, b;       ///< (r, in) and (rows, r), external row order
  int64_t rank = 0;
  double alpha = 0, scale = 0;
};
/// The modules of a layout's names, in the order of the model.
std::vector<AdapterModule> adapter_modules(const Lora&, const detail::TensorMappings& layout);

}  // namespace tg
