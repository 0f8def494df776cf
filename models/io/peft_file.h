// The files of a PEFT adapter, and the modules that its configuration selects. Internal.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/model/lora.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tg::detail {

inline constexpr const char *kPeftConfig = "adapter_config.json", *kPeftWeights = "adapter_model.safetensors";
inline constexpr std::string_view kPeftPrefix = "base_model.model.", kPeftA = ".lora_A.weight",
                                  kPeftB = ".lora_B.weight";

// Whether target_modules, exclude_modules, layers_to_transform and layers_pattern select a module, as PEFT applies
// them. Nothing without target_modules, or for a regular expression in a syntax that Regex lacks: the tensors of
// the file name the modules as well.
std::optional<bool> is_selected(const Json& config, const std::string& module);

struct PeftFile {
  std::string config_path, path;
  Json config;
  LoraConfig lora = {.targets = {}, .rank = 0, .alpha = 0};
  std::string base;  // weights_hash() of the base, or ""
  bool base_is_bf16 = false;
  std::map<std::string, std::pair<Tensor, Tensor>> modules;  // A (r, in) and B (out, r)
  std::map<std::string, Tensor> copies;                      // weights of the base, which PEFT saves with adapted heads
  std::map<std::string, int64_t> ranks;                      // of modules
  std::map<std::string, double> alphas;
  std::vector<std::string> to_save;     // modules_to_save
  std::map<std::string, Tensor> whole;  // their tensors
};
// The configuration alone. An Error if the folder has no adapter.
Json read_peft_config(const std::string& folder);
std::string peft_weights_path(const std::string& folder);
// An Error for damage, or a key that would change results and is not supported.
PeftFile read_peft(const std::string& folder);

}  // namespace tg::detail
